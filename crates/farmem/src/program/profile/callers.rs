//! Return addresses on a stack.
//!
//! The stack is searched from its end upwards for addresses behind a call. Neither frame pointers nor tables for unwinding are
//! needed, which the code that faults may not have. An address that a function has left behind, in a part of a later frame that
//! was not written since, looks the same; the reader of the profile compares what is called
//! ([`ReturnAddress::target`](super::access_profile::ReturnAddress)).

use std::ops::Range;

use base::Map;

use super::access_profile::{CodeAddress, ReturnAddress};
use super::address_map::{AddressMap, MappedAddress};
use crate::kernel::process_memory;

/// Bytes of the stack that are searched.
const STACK_BYTES: u64 = 16 << 10;
/// Bytes that are read at once.
const STEP_BYTES: usize = 1 << 10;
/// Bytes of the longest call.
const CALL_BYTES: usize = 7;
/// Bytes of a call that names what it calls.
const DIRECT_CALL_BYTES: usize = 5;
/// Addresses of which it is remembered whether they are behind a call.
const KNOWN_MAX: usize = 1 << 16;

/// The end of an instruction sequence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum CallBefore {
    None,
    /// The target is in a register or in memory.
    Indirect,
    /// The distance of the target from the return address.
    Direct(i32),
}

/// Searches stacks of one process.
#[derive(Default)]
pub(super) struct CallerSearch {
    known: Map<u64, CallBefore>,
}

impl CallerSearch {
    /// At most `count` return addresses on the stack of a thread, without those of runtimes. Nothing of `far` is read.
    pub(super) fn find(
        &mut self,
        thread: u32,
        stack: u64,
        far: &[Range<u64>],
        map: &AddressMap,
        count: usize,
    ) -> Vec<ReturnAddress> {
        let mut found = Vec::new();
        let mut bytes = [0; STEP_BYTES];
        for at in (0..STACK_BYTES).step_by(STEP_BYTES) {
            let start = stack.saturating_add(at) & !7;
            let end = start.saturating_add(STEP_BYTES as u64);
            if far.iter().any(|far| start < far.end && far.start < end) {
                // A stack in far memory: who serves its faults must not cause one.
                break;
            }
            let Ok(read) = process_memory::read(thread, start, &mut bytes) else { break };
            for word in bytes[..read].chunks_exact(8) {
                let word = u64::from_le_bytes(word.try_into().expect("the chunk has eight bytes"));
                let Some(mapped) = map.find(word).filter(|mapped| !mapped.is_runtime) else { continue };
                found.extend(self.return_address(thread, word, mapped, map));
                if found.len() >= count {
                    return found;
                }
            }
            if read < STEP_BYTES {
                break;
            }
        }
        found
    }

    fn return_address(
        &mut self,
        thread: u32,
        word: u64,
        mapped: MappedAddress,
        map: &AddressMap,
    ) -> Option<ReturnAddress> {
        let call = self.call_before(thread, word);
        let CodeAddress { object, offset } = mapped.address;
        let address = CodeAddress { object, offset: offset.saturating_sub(1) };
        match call {
            CallBefore::None => None,
            CallBefore::Indirect => Some(ReturnAddress { address, target: None }),
            CallBefore::Direct(distance) => {
                let target = map.find(word.wrapping_add_signed(distance.into()));
                // A call leads to code.
                target.map(|target| ReturnAddress { address, target: Some(target.address) })
            }
        }
    }

    fn call_before(&mut self, thread: u32, address: u64) -> CallBefore {
        if let Some(known) = self.known.get(&address) {
            return *known;
        }
        let mut code = [0; CALL_BYTES];
        let read = process_memory::read(thread, address.wrapping_sub(CALL_BYTES as u64), &mut code);
        let call = if read.is_ok_and(|bytes| bytes == CALL_BYTES) { call_at_end(code) } else { CallBefore::None };
        if self.known.len() >= KNOWN_MAX {
            self.known.clear();
        }
        self.known.insert(address, call);
        call
    }
}

/// The call with which these bytes of code end, if they do.
fn call_at_end(code: [u8; CALL_BYTES]) -> CallBefore {
    let direct = &code[CALL_BYTES - DIRECT_CALL_BYTES..];
    if let [0xe8, distance @ ..] = direct {
        return CallBefore::Direct(i32::from_le_bytes(distance.try_into().expect("four bytes are left")));
    }
    let is_indirect = (0..CALL_BYTES - 1).any(|start| is_indirect_call(&code[start..]));
    if is_indirect { CallBefore::Indirect } else { CallBefore::None }
}

/// Whether these bytes are one instruction: a call of what a register or memory names (opcode FF, register field 2).
fn is_indirect_call(code: &[u8]) -> bool {
    let code = match code {
        [0x40..=0x4f, rest @ ..] => rest,
        code => code,
    };
    let [0xff, operand, rest @ ..] = code else { return false };
    let (mode, number, base) = (operand >> 6, operand >> 3 & 7, operand & 7);
    let has_index = mode != 3 && base == 4;
    let is_absolute = mode == 0 && (base == 5 || (has_index && rest.first().is_some_and(|index| index & 7 == 5)));
    let distance_bytes = match mode {
        1 => 1,
        2 => 4,
        _ if is_absolute => 4,
        _ => 0,
    };
    number == 2 && rest.len() == usize::from(has_index) + distance_bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_recognised_from_behind() {
        let direct = CallBefore::Direct(-16);
        for (code, call) in [
            ([0x90, 0x90, 0xe8, 0xf0, 0xff, 0xff, 0xff], direct),   // call -16
            ([0x90, 0xff, 0x15, 1, 2, 3, 4], CallBefore::Indirect), // call *0x4030201(%rip)
            ([0x90, 0x90, 0x90, 0x90, 0x90, 0xff, 0xd0], CallBefore::Indirect), // call *%rax
            ([0x90, 0x90, 0x90, 0x90, 0x41, 0xff, 0xd4], CallBefore::Indirect), // call *%r12
            ([0x90, 0x90, 0x90, 0x90, 0xff, 0x50, 0x18], CallBefore::Indirect), // call *24(%rax)
            ([0x90, 0x90, 0x90, 0xff, 0x54, 0x24, 0x08], CallBefore::Indirect), // call *8(%rsp)
            ([0xff, 0x94, 0x24, 0, 1, 0, 0], CallBefore::Indirect), // call *256(%rsp)
            ([0x90, 0x90, 0x90, 0x90, 0x90, 0xff, 0xe0], CallBefore::None), // jmp *%rax
            ([0x90; 7], CallBefore::None),
            ([0, 0, 0, 0, 0, 0, 0xff], CallBefore::None),
        ] {
            assert_eq!(call_at_end(code), call, "{code:x?}");
        }
    }
}
