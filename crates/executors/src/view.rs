//! What the role shows of its executors, and how that travels.
//!
//! ```text
//! view       is stopping u8 | 0 × 3 | executors max u32 | count u32 | executors
//! executor   owner u32 | program u32 | process u32 | condition u8 | 0 × 3 | contexts u32 | running u32 | waiting u32 | 0 × 4
//!            | age ms u64 | silence ms u64 | begun u64 | ended, 5 × u64 | queued ns u64 | memory u64 | memory limit u64
//!            | processor µs u64 | name (text)
//! ```
//!
//! Memory and processor time are all ones if they are unknown, and so is a limit that there is not.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use base::Bytes;
use pushdown::CallEnd;
use wire::{Malformed, Reader, Writer};

/// How an executor fares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExecutorCondition {
    /// It has not begun.
    Starting,
    /// It serves its program.
    Serving,
    /// It does not answer.
    Sick,
    /// It was killed, and has not ended yet.
    Ending,
}

/// How calls have ended, with how many.
pub type EndCount = (CallEnd, u64);

/// An executor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExecutorView {
    /// The user whose program it serves.
    pub owner: u32,
    /// The program's number.
    pub program: u32,
    /// The executor's number.
    pub process: u32,
    /// The name of the program, as the program says.
    pub name: String,
    /// How it fares.
    pub condition: ExecutorCondition,
    /// How many functions run at the same time, at most.
    pub contexts: u32,
    /// Functions that run.
    pub running: u32,
    /// Calls that wait for their turn.
    pub waiting: u32,
    /// For how long it has been there, in milliseconds.
    pub age_ms: u64,
    /// For how long it has not answered, in milliseconds.
    pub silence_ms: u64,
    /// Functions that have begun.
    pub begun: u64,
    /// How calls have ended, by [`CallEnd`].
    pub ended: [u64; CallEnd::COUNT],
    /// For how many nanoseconds calls have waited, all together.
    pub queued_ns: u64,
    /// Bytes of its memory, if they are known.
    pub memory_bytes: Option<u64>,
    /// Most bytes of its memory.
    pub memory_limit_bytes: Option<u64>,
    /// Processor time that it has used, in microseconds, if it is known.
    pub processor_us: Option<u64>,
}

/// All executors that a client may see.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RoleView {
    /// The role admits nobody any more.
    pub is_stopping: bool,
    /// Most executors at the same time.
    pub executors_max: u32,
    /// The executors, the oldest first.
    pub executors: Vec<ExecutorView>,
}

/// Bytes of a program's name.
pub(crate) const NAME_BYTES_MAX: usize = 64;
/// Bytes of an executor without its name.
const EXECUTOR_BYTES: usize = 8 * 4 + 12 * 8 + 2;
/// Most executors in a view.
const EXECUTORS_MAX: usize = 1024;
const UNKNOWN: u64 = u64::MAX;

impl ExecutorCondition {
    const ALL: [ExecutorCondition; 4] =
        [ExecutorCondition::Starting, ExecutorCondition::Serving, ExecutorCondition::Sick, ExecutorCondition::Ending];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            ExecutorCondition::Starting => "starting",
            ExecutorCondition::Serving => "serving",
            ExecutorCondition::Sick => "sick",
            ExecutorCondition::Ending => "ending",
        }
    }
}

impl ExecutorView {
    /// Calls that have ended in each way.
    pub fn ends(&self) -> [EndCount; CallEnd::COUNT] {
        CallEnd::ALL.map(|end| (end, self.ended[end as usize]))
    }
}

impl RoleView {
    /// As a message.
    pub(crate) fn encode(&self) -> Bytes {
        let mut writer = Writer::with_capacity(self.executors.len().saturating_mul(160).saturating_add(64));
        writer.flag(self.is_stopping).zeros(3).u32(self.executors_max).u32(self.executors.len() as u32);
        for executor in &self.executors {
            let ExecutorView { owner, program, process, condition, contexts, running, waiting, .. } = *executor;
            writer.u32(owner).u32(program).u32(process).u8(condition as u8).zeros(3);
            writer.u32(contexts).u32(running).u32(waiting).zeros(4);
            writer.u64(executor.age_ms).u64(executor.silence_ms).u64(executor.begun).u64s(executor.ended);
            writer.u64(executor.queued_ns);
            for number in [executor.memory_bytes, executor.memory_limit_bytes, executor.processor_us] {
                writer.u64(number.unwrap_or(UNKNOWN));
            }
            writer.text(&executor.name);
        }
        writer.done()
    }

    /// Of a message.
    ///
    /// # Errors
    /// [`Malformed`].
    pub(crate) fn decode(message: Bytes) -> Result<RoleView, Malformed> {
        let mut reader = Reader::new(message);
        let is_stopping = reader.flag()?;
        reader.zeros(3)?;
        let executors_max = reader.u32()?;
        let count = reader.count(EXECUTOR_BYTES, EXECUTORS_MAX)?;
        let mut executors = Vec::with_capacity(count);
        for _ in 0..count {
            executors.push(executor(&mut reader)?);
        }
        reader.end()?;
        Ok(RoleView { is_stopping, executors_max, executors })
    }
}

fn executor(reader: &mut Reader<Bytes>) -> Result<ExecutorView, Malformed> {
    let (owner, program, process) = (reader.u32()?, reader.u32()?, reader.u32()?);
    let condition = ExecutorCondition::ALL.get(usize::from(reader.u8()?)).copied();
    let condition = condition.ok_or_else(|| reader.malformed("unknown condition of an executor"))?;
    reader.zeros(3)?;
    let (contexts, running, waiting) = (reader.u32()?, reader.u32()?, reader.u32()?);
    reader.zeros(4)?;
    let (age_ms, silence_ms, begun) = (reader.u64()?, reader.u64()?, reader.u64()?);
    let mut ended = [0; CallEnd::COUNT];
    for count in &mut ended {
        *count = reader.u64()?;
    }
    let queued_ns = reader.u64()?;
    let mut known = || reader.u64().map(|number| Some(number).filter(|number| *number != UNKNOWN));
    let (memory_bytes, memory_limit_bytes, processor_us) = (known()?, known()?, known()?);
    let name = reader.text(NAME_BYTES_MAX)?;
    Ok(ExecutorView {
        owner,
        program,
        process,
        name,
        condition,
        contexts,
        running,
        waiting,
        age_ms,
        silence_ms,
        begun,
        ended,
        queued_ns,
        memory_bytes,
        memory_limit_bytes,
        processor_us,
    })
}

/// A name that a program has chosen, with what a terminal can show.
pub(crate) fn shown_name(name: &str) -> String {
    let printable = name.trim_end().chars().map(|c| if c.is_ascii_graphic() { c } else { '?' });
    printable.take(NAME_BYTES_MAX).collect()
}

/// Views that tests and fuzzing begin with.
pub(crate) fn samples() -> [RoleView; 2] {
    let executor = ExecutorView {
        owner: 1000,
        program: 7,
        process: 8,
        name: "analyse".to_owned(),
        condition: ExecutorCondition::Sick,
        contexts: 4,
        running: 2,
        waiting: 3,
        age_ms: 60_000,
        silence_ms: 2500,
        begun: 90,
        ended: [80, 1, 2, 3, 4],
        queued_ns: 5,
        memory_bytes: Some(64 << 20),
        memory_limit_bytes: None,
        processor_us: None,
    };
    let other = ExecutorView { name: String::new(), condition: ExecutorCondition::Ending, ..executor.clone() };
    [RoleView::default(), RoleView { is_stopping: true, executors_max: 16, executors: vec![executor, other] }]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_decodes_to_itself_and_prefixes_do_not_decode() {
        let [_, view] = samples();
        let bytes = view.encode();
        assert_eq!(RoleView::decode(bytes.clone()).expect("well-formed"), view);
        for end in 0..bytes.len() {
            assert!(RoleView::decode(bytes.slice(..end)).is_err());
        }
        let mut many = bytes.to_vec();
        many[8..12].fill(0xff);
        assert!(RoleView::decode(many.into()).is_err(), "it is longer than a view may be");
    }

    #[test]
    fn a_name_cannot_move_a_terminal() {
        assert_eq!(shown_name("a\x1b[2Jb\n"), "a?[2Jb");
        assert_eq!(shown_name(&"x".repeat(1000)).len(), NAME_BYTES_MAX);
    }
}
