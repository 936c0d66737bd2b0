//! Accesses to lost pages: an error within [`guard`], the end of the program with a clear message elsewhere.
//!
//! 1. A lost page is poisoned: the kernel sends SIGBUS to the thread that touches it, at the instruction that does, before
//!    it reads or writes a byte. So no access ever sees wrong bytes.
//! 2. The handler of that signal finds the region of the address. If the thread is within [`guard`], the handler has it
//!    go on at the end of `guard`, which returns the loss.
//! 3. Otherwise the handler writes which region, and which node, to standard error, and lets the signal end the process.
//! 4. SIGBUS at other addresses, or sent by a program, goes to the handler that was there before.
//! 5. A region whose faults the faulting thread serves ([`FaultPath::FaultingThread`](crate::FaultPath)) has a
//!    [`FaultService`]: the handler calls it first. If the page is not lost, the access is repeated. (Not every kernel says which
//!    pages are poisoned.)
//!
//! The handler is installed with the first region of the process. But for what a service does, it allocates nothing and takes
//! no lock. With the first service it leaves the signal stacks of threads, which are small, for their own. Signals that
//! no instruction causes wait until it returns: their handlers may touch far memory, and this thread may hold a lock of the pager.
//!
//! A system call on a lost page fails with `EFAULT` or `EHWPOISON`; no signal is sent for it.

#![allow(unsafe_code)]

use std::any::Any;
use std::arch::global_asm;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::error::{Error, Lost};
use crate::kernel::signals;
use crate::page::{PAGE_BYTES, PageNumber, PageRange};

#[cfg(not(target_arch = "x86_64"))]
compile_error!("heddle-farmem: leaving an access to a lost page is written for x86-64 only (guard.rs)");

/// Regions that a process may have at the same time.
pub(crate) const REGIONS_MAX: usize = 64;

/// The bit of a page fault's error code that says that the access was a write (Intel SDM, volume 3, section 5.7).
const PAGE_FAULT_WRITE: i64 = 1 << 1;

/// A region, as the signal's handler sees it.
struct Slot {
    /// 0 when the slot is free.
    start: AtomicU64,
    end: AtomicU64,
    /// What the handler writes; null before the first loss.
    message: AtomicPtr<String>,
    /// Null when a thread of the region serves its faults.
    service: AtomicPtr<FaultService>,
}

static SLOTS: [Slot; REGIONS_MAX] = [const {
    Slot {
        start: AtomicU64::new(0),
        end: AtomicU64::new(0),
        message: AtomicPtr::new(ptr::null_mut()),
        service: AtomicPtr::new(ptr::null_mut()),
    }
}; REGIONS_MAX];

/// Serves a fault in the thread that faults: its address, and whether the access is a write. Returns whether the access is to be
/// repeated: the page is not lost.
pub(crate) struct FaultService(pub(crate) Box<dyn Fn(u64, bool) -> bool + Send + Sync>);

/// The regions with losses, for code outside of the handler.
static SITES: Mutex<Vec<Arc<SiteLosses>>> = Mutex::new(Vec::new());

/// What handled SIGBUS before.
static EARLIER: OnceLock<libc::sigaction> = OnceLock::new();

/// Lost ranges by their first page, with the numbers of their nodes. Neighbours with one node are one range.
#[derive(Default)]
struct LossesByPage {
    ranges: BTreeMap<u32, (PageRange, usize)>,
    nodes: Vec<String>,
}

impl LossesByPage {
    /// Whether the node has lost nothing before.
    fn add(&mut self, mut range: PageRange, node: &str) -> bool {
        let known = self.nodes.iter().position(|one| one == node);
        let number = known.unwrap_or_else(|| {
            self.nodes.push(node.to_owned());
            self.nodes.len() - 1
        });
        if let Some((before, at)) = self.ranges.range(..range.first.0).next_back().map(|(_, found)| *found)
            && before.end() == range.first.0
            && at == number
        {
            range = PageRange { first: before.first, pages: before.pages + range.pages };
        }
        if let Some((behind, at)) = self.ranges.get(&range.end()).copied()
            && at == number
        {
            self.ranges.remove(&behind.first.0);
            range.pages += behind.pages;
        }
        self.ranges.insert(range.first.0, (range, number));
        known.is_none()
    }

    fn node_of(&self, page: PageNumber) -> Option<&str> {
        let (_, (range, node)) = self.ranges.range(..=page.0).next_back()?;
        range.contains(PageRange::of(page)).then(|| self.nodes[*node].as_str())
    }
}

struct SiteLosses {
    start: u64,
    bytes: u64,
    region: String,
    lost: Mutex<LossesByPage>,
}

/// A region that is known to the signal's handler, for as long as this exists.
pub(crate) struct FaultSite {
    slot: &'static Slot,
    losses: Arc<SiteLosses>,
    service: OnceLock<FaultService>,
}

impl FaultSite {
    /// # Errors
    /// [`Error::Config`] when the process has too many regions, [`Error::System`].
    pub(crate) fn new(start: u64, bytes: u64, region: &str) -> Result<FaultSite, Error> {
        install(false)?;
        let mut sites = SITES.lock().unwrap_or_else(PoisonError::into_inner);
        let free = SLOTS.iter().find(|slot| slot.start.load(Ordering::Relaxed) == 0);
        let slot = free.ok_or_else(|| Error::Config(format!("a process has at most {REGIONS_MAX} regions")))?;
        slot.message.store(ptr::null_mut(), Ordering::Relaxed);
        slot.service.store(ptr::null_mut(), Ordering::Relaxed);
        slot.end.store(start + bytes, Ordering::Relaxed);
        slot.start.store(start, Ordering::Release);
        let losses = Arc::new(SiteLosses { start, bytes, region: region.to_owned(), lost: Mutex::default() });
        sites.push(Arc::clone(&losses));
        Ok(FaultSite { slot, losses, service: OnceLock::new() })
    }

    /// Has faulting threads serve themselves from now on, until this is dropped.
    ///
    /// # Errors
    /// [`Error::System`].
    pub(crate) fn serve(&self, service: FaultService) -> Result<(), Error> {
        install(true)?;
        let service = ptr::from_ref(self.service.get_or_init(|| service)).cast_mut();
        self.slot.service.store(service, Ordering::Release);
        Ok(())
    }

    /// Notes lost pages, before they are poisoned.
    pub(crate) fn note(&self, range: PageRange, node: &str) {
        let mut lost = self.losses.lost.lock().unwrap_or_else(PoisonError::into_inner);
        // One text more for each node, which stays: the handler may read it at any time from now on.
        if lost.add(range, node) {
            let nodes = lost.nodes.join(", ");
            let nodes = if lost.nodes.len() > 1 { format!("one of {nodes}") } else { nodes };
            let message = format!(
                "farmem: the region {} has lost pages with {nodes}. An access to one of them outside of farmem::guard ends \
                 this program, because its bytes are gone; it happened at page ",
                self.losses.region
            );
            self.slot.message.store(Box::into_raw(Box::new(message)), Ordering::Release);
        }
    }

    /// The losses so far.
    pub(crate) fn losses(&self) -> Vec<Lost> {
        let lost = self.losses.lost.lock().unwrap_or_else(PoisonError::into_inner);
        let loss = |(range, node): &(PageRange, usize)| Lost {
            region: self.losses.region.clone(),
            range: *range,
            node: lost.nodes[*node].clone(),
        };
        lost.ranges.values().map(loss).collect()
    }
}

impl Drop for FaultSite {
    fn drop(&mut self) {
        self.slot.start.store(0, Ordering::Release);
        SITES.lock().unwrap_or_else(PoisonError::into_inner).retain(|site| !Arc::ptr_eq(site, &self.losses));
    }
}

/// Where a thread leaves [`guard`] to.
#[repr(C)]
struct GuardFrame {
    /// The stack pointer of the guarded call, whose frame has the registers that a call preserves.
    stack: u64,
    /// The address of the access that ended it.
    address: u64,
}

thread_local! {
    /// The innermost guard of this thread.
    static GUARD: Cell<*mut GuardFrame> = const { Cell::new(ptr::null_mut()) };
}

global_asm!(
    // farmem_guarded_call(frame, function, argument): calls function(argument) and returns 0. The signal's handler has the
    // thread go on at farmem_guarded_exit instead, with the stack pointer that the frame has: then the call returns 1.
    ".globl farmem_guarded_call",
    ".hidden farmem_guarded_call",
    ".type farmem_guarded_call, @function",
    "farmem_guarded_call:",
    "push rbp",
    "push rbx",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "sub rsp, 8",
    "mov [rdi], rsp",
    "mov rdi, rdx",
    "call rsi",
    "xor eax, eax",
    "2:",
    "add rsp, 8",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbx",
    "pop rbp",
    "ret",
    ".size farmem_guarded_call, .-farmem_guarded_call",
    ".globl farmem_guarded_exit",
    ".hidden farmem_guarded_exit",
    ".type farmem_guarded_exit, @function",
    "farmem_guarded_exit:",
    "cld",
    "mov eax, 1",
    "jmp 2b",
    ".size farmem_guarded_exit, .-farmem_guarded_exit",
);

unsafe extern "C" {
    fn farmem_guarded_call(
        frame: *mut GuardFrame,
        function: extern "C" fn(*mut c_void),
        argument: *mut c_void,
    ) -> c_int;
    fn farmem_guarded_exit();
}

/// A closure and its result.
struct GuardedCall<F, T> {
    access: Option<F>,
    result: Option<Result<T, Box<dyn Any + Send>>>,
}

extern "C" fn run<F: FnOnce() -> T, T>(argument: *mut c_void) {
    // SAFETY: `guard` passes a pointer to its own value of this type, which nothing else uses meanwhile.
    let call = unsafe { &mut *argument.cast::<GuardedCall<F, T>>() };
    if let Some(access) = call.access.take() {
        call.result = Some(catch_unwind(AssertUnwindSafe(access)));
    }
}

/// Runs a closure that reads and writes far memory, and returns its result, or the loss of a page that it touched. What the
/// closure had done before that stays done.
///
/// # Errors
/// [`Lost`] with the page that was touched.
///
/// # Safety
/// At a loss the thread leaves the closure in the middle, at any access to far memory, and runs no destructors of the
/// closure's frames and of the functions that it calls. So none of them may hold, at such an access, a value whose destructor
/// others rely on: a lock's guard, a borrowed `RefCell`, a scope of threads. Values that only own memory are leaked. Nor may a
/// function be left that has broken an invariant of a value which lives on: call no code of a library that calls back into the
/// closure, or that works on far memory through `&mut` to a value from outside (a sort, `Vec::extend`, a map's entry). Values
/// from outside that the closure changes must be plain data, every state of which is valid. Copies, arithmetic and loops over
/// slices are fine. `Region::read` and `Region::write` need no such promise.
pub unsafe fn guard<T>(access: impl FnOnce() -> T) -> Result<T, Lost> {
    fn call<F: FnOnce() -> T, T>(frame: *mut GuardFrame, call: &mut GuardedCall<F, T>) -> c_int {
        // SAFETY: the function gets the argument that it expects. The assembly preserves the registers and the stack of its
        // caller on both ways out. The caller of `guard` has promised that the frames between may be left.
        unsafe { farmem_guarded_call(frame, run::<F, T>, ptr::from_mut(call).cast()) }
    }
    let mut frame = GuardFrame { stack: 0, address: 0 };
    // The one way to the frame: the assembly and the signal's handler write to it.
    let frame = &raw mut frame;
    let mut guarded = GuardedCall { access: Some(access), result: None };
    let outer = GUARD.replace(frame);
    let left = call(frame, &mut guarded);
    GUARD.set(outer);
    if left != 0 {
        // SAFETY: the frame lives until this function returns, and nothing else uses it any more.
        return Err(loss_at(unsafe { (*frame).address }));
    }
    match guarded.result.expect("the closure has returned or panicked") {
        Ok(value) => Ok(value),
        Err(panic) => resume_unwind(panic),
    }
}

/// The loss of the page at an address.
fn loss_at(address: u64) -> Lost {
    let sites = SITES.lock().unwrap_or_else(PoisonError::into_inner);
    let found = sites.iter().find(|site| (site.start..site.start + site.bytes).contains(&address));
    let site = found.expect("the handler looks for regions that exist");
    let page = PageNumber(((address - site.start) / PAGE_BYTES as u64) as u32);
    let lost = site.lost.lock().unwrap_or_else(PoisonError::into_inner);
    let node = lost.node_of(page).unwrap_or("an unknown node").to_owned();
    Lost { region: site.region.clone(), range: PageRange::of(page), node }
}

/// Installs the handler; with `serves` one that runs on the stack of the thread.
fn install(serves: bool) -> Result<(), Error> {
    static INSTALLED: Mutex<Option<bool>> = Mutex::new(None);
    let mut installed_for = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    if installed_for.is_some_and(|service| service >= serves) {
        return Ok(());
    }
    // SAFETY: both structures are plain data, for which zeros are valid. The handler does only what a handler may.
    let installed = unsafe {
        let mut earlier: libc::sigaction = std::mem::zeroed();
        if installed_for.is_none() && libc::sigaction(libc::SIGBUS, ptr::null(), &mut earlier) == 0 {
            // Before the handler can run.
            let _ = EARLIER.set(earlier);
        }
        let mut action: libc::sigaction = std::mem::zeroed();
        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_bus_error;
        action.sa_sigaction = handler as usize;
        action.sa_flags = if serves { libc::SA_SIGINFO } else { libc::SA_SIGINFO | libc::SA_ONSTACK };
        action.sa_mask = signals::asynchronous();
        libc::sigaction(libc::SIGBUS, &action, ptr::null_mut())
    };
    if installed != 0 {
        return Err(Error::system("cannot handle SIGBUS"));
    }
    *installed_for = Some(serves);
    Ok(())
}

extern "C" fn on_bus_error(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes both structures to a handler that was installed with SA_SIGINFO.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as u64) };
    let slot = SLOTS.iter().find(|slot| {
        let start = slot.start.load(Ordering::Acquire);
        // A signal that a program has sent, whose code is not positive, has no address.
        code > 0 && start != 0 && (start..slot.end.load(Ordering::Relaxed)).contains(&address)
    });
    let Some(slot) = slot else { return pass_on(signal, info, context) };
    let service = slot.service.load(Ordering::Acquire);
    if !service.is_null() {
        // SAFETY: the service lives as long as its region, to which the access is. The context is as above. `errno` is this thread's.
        let is_repeated = unsafe {
            let registers = &(*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
            let is_write = registers[libc::REG_ERR as usize] & PAGE_FAULT_WRITE != 0;
            let errno = *libc::__errno_location();
            let is_repeated = ((*service).0)(address, is_write);
            *libc::__errno_location() = errno;
            is_repeated
        };
        if is_repeated {
            return;
        }
    }
    let frame = GUARD.get();
    if !frame.is_null() {
        // SAFETY: the frame lies in a call of `guard` of this very thread that has not returned. The context is the thread's, as
        // it was at the access, and the kernel loads it when the handler returns.
        unsafe {
            (*frame).address = address;
            let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
            registers[libc::REG_RSP as usize] = (*frame).stack as i64;
            registers[libc::REG_RIP as usize] = farmem_guarded_exit as *const () as i64;
        }
        return;
    }
    let message = slot.message.load(Ordering::Acquire);
    // SAFETY: a text that was put there is never freed or changed.
    write_out(unsafe { message.as_ref() }.map_or(b"farmem: a region has lost page ", |text| text.as_bytes()));
    let page = (address - slot.start.load(Ordering::Relaxed)) / PAGE_BYTES as u64;
    let mut digits = [b'\n'; 21];
    write_out(decimal(page, &mut digits));
    end_by(signal);
}

/// The number in decimal, and the end of the line behind it.
fn decimal(mut number: u64, digits: &mut [u8; 21]) -> &[u8] {
    let mut first = digits.len() - 1;
    loop {
        first -= 1;
        digits[first] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &digits[first..];
        }
    }
}

fn write_out(text: &[u8]) {
    // SAFETY: the kernel reads as many bytes as there are. A handler may call it.
    let _ = unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
}

/// Has the signal end the process: when the handler returns, the access is repeated, and so is the signal.
fn end_by(signal: c_int) {
    // SAFETY: as in `install`. A handler may call it.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = libc::SIG_DFL;
        libc::sigaction(signal, &action, ptr::null_mut());
    }
}

fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let earlier = EARLIER.get().map_or((libc::SIG_DFL, 0), |earlier| (earlier.sa_sigaction, earlier.sa_flags));
    match earlier {
        // The kernel lets no process ignore an access that fails.
        // SAFETY: as in `on_bus_error`.
        (libc::SIG_IGN, _) if unsafe { (*info).si_code } <= 0 => {}
        (libc::SIG_DFL | libc::SIG_IGN, _) => {
            end_by(signal);
            // Nothing is repeated that would send this signal again. It is blocked until the handler returns.
            // SAFETY: the call has no memory argument, and a handler may call it.
            unsafe { libc::raise(signal) };
        }
        (handler, flags) if flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: the kernel gave us this address as that of a handler with three arguments.
            let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                unsafe { std::mem::transmute(handler) };
            handler(signal, info, context);
        }
        (handler, _) => {
            // SAFETY: the kernel gave us this address as that of a handler with one argument.
            let handler: extern "C" fn(c_int) = unsafe { std::mem::transmute(handler) };
            handler(signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_in_decimal() {
        for number in [0, 7, 10, 4_294_967_295, u64::MAX] {
            assert_eq!(decimal(number, &mut [b'\n'; 21]), format!("{number}\n").as_bytes());
        }
    }

    #[test]
    fn lost_neighbours_of_one_node_are_one_range() {
        let mut losses = LossesByPage::default();
        let range = |first, pages| PageRange { first: PageNumber(first), pages };
        let added = [(5, 1, "a"), (7, 1, "a"), (6, 1, "a"), (8, 2, "b"), (4, 1, "b"), (20, 1, "a")];
        let is_new = added.map(|(first, pages, node)| losses.add(range(first, pages), node));
        assert_eq!(is_new, [true, false, false, true, false, false]);
        let ranges: Vec<_> = losses.ranges.values().copied().collect();
        assert_eq!(ranges, [(range(4, 1), 1), (range(5, 3), 0), (range(8, 2), 1), (range(20, 1), 0)]);
        let nodes = [3, 4, 7, 9, 10, 20].map(|page| losses.node_of(PageNumber(page)));
        assert_eq!(nodes, [None, Some("b"), Some("a"), Some("b"), None, Some("a")]);
    }

    #[test]
    fn a_guarded_closure_returns_its_value_and_panics_through() {
        // SAFETY: no far memory is touched.
        assert_eq!(unsafe { guard(|| 7) }, Ok(7));
        // SAFETY: as above.
        let panicked = catch_unwind(|| unsafe { guard(|| panic!("on purpose")) });
        assert!(panicked.is_err() && GUARD.get().is_null());
    }
}
