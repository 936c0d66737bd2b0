//! The steps of the protocol one by one: which messages each costs, and what each side refuses.

use std::time::Duration;

use base::ErrorKind;
use page_coherence::{
    Access, CallId, CallOutcome, CallerOutput, CallerSide, CoherenceError, CoherenceMode, CoherenceSettings,
    ExecutorOutput, ExecutorSide, Favour, Output, PAGE_BYTES, PAGE_NUMBERS, PageBytes, PageList, PageNumber, Payload,
    Right, RunMap, ToCaller, ToExecutor,
};

const NOW: Duration = Duration::ZERO;
const P: PageNumber = PageNumber(7);

/// Both sides; messages travel when a test says so.
struct Pair {
    caller: CallerSide,
    executor: ExecutorSide,
    caller_out: Vec<CallerOutput>,
    executor_out: Vec<ExecutorOutput>,
}

impl Pair {
    fn new(settings: CoherenceSettings) -> Pair {
        let (caller, executor) = (CallerSide::new(settings), ExecutorSide::new(settings));
        Pair { caller, executor, caller_out: Vec::new(), executor_out: Vec::new() }
    }

    /// The messages that the caller has sent, which leave.
    fn sent_by_caller(&mut self) -> Vec<ToExecutor> {
        let sent = self.caller_out.drain(..).filter_map(|output| match output {
            Output::Send(message) => Some(message),
            _ => None,
        });
        sent.collect()
    }

    fn sent_by_executor(&mut self) -> Vec<ToCaller> {
        let sent = self.executor_out.drain(..).filter_map(|output| match output {
            Output::Send(message) => Some(message),
            _ => None,
        });
        sent.collect()
    }

    /// Delivers all messages, those that they cause too, and loads pages at once; returns how many messages there were.
    fn settle(&mut self) -> usize {
        let mut count = 0;
        loop {
            let loads: Vec<PageNumber> = self
                .executor_out
                .iter()
                .filter_map(|output| match output {
                    Output::Load(page) => Some(*page),
                    _ => None,
                })
                .collect();
            let (to_executor, to_caller) = (self.sent_by_caller(), self.sent_by_executor());
            if to_executor.is_empty() && to_caller.is_empty() && loads.is_empty() {
                return count;
            }
            count += to_executor.len() + to_caller.len();
            for message in to_caller {
                self.caller.receive(message, NOW, &mut self.caller_out).expect("the executor keeps to the protocol");
            }
            for message in to_executor {
                self.executor.receive(message, NOW, &mut self.executor_out).expect("the caller keeps to the protocol");
            }
            for page in loads {
                self.executor.loaded(page, &mut self.executor_out);
            }
        }
    }

    fn caller_accesses(&mut self, page: PageNumber, access: Access) -> usize {
        self.caller.fault(page, access, &mut self.caller_out);
        self.settle()
    }

    fn executor_accesses(&mut self, page: PageNumber, access: Access) -> usize {
        let mut count = 0;
        // The second fault is that of the thread that was woken.
        for _ in 0..2 {
            self.executor.fault(page, access, &mut self.executor_out);
            count += self.settle();
        }
        count
    }

    fn call(&mut self, number: u64, mode: CoherenceMode) {
        self.caller.call(CallId(number), mode, &mut self.caller_out).expect("it may call");
    }
}

#[test]
fn a_call_moves_no_page_and_costs_two_messages_whatever_is_resident() {
    for resident in [0, 1, 500] {
        let mut pair = Pair::new(CoherenceSettings::default());
        for page in 0..resident {
            pair.caller_accesses(PageNumber(3 * page), Access::Write);
        }
        pair.call(1, CoherenceMode::Coherent);
        assert_eq!(pair.settle(), 1);
        pair.executor_accesses(PageNumber(1), Access::Write);
        pair.executor.finish(CallId(1), &mut pair.executor_out).expect("it runs");
        assert_eq!(pair.settle(), 1);
        assert!(pair.executor.is_dirty(PageNumber(1)), "the dirty bit is merged");
        assert!((0..resident).all(|page| pair.caller.right(PageNumber(3 * page)) == Right::Write));
    }
}

#[test]
fn contents_travel_only_if_the_receiver_lacks_them() {
    let mut pair = Pair::new(CoherenceSettings::default());
    pair.caller_accesses(P, Access::Read);
    pair.call(1, CoherenceMode::Coherent);
    pair.settle();
    assert_eq!((pair.caller.right(P), pair.executor.right(P)), (Right::Read, Right::Read));
    // The executor upgrades: the caller's copy is clean, so nothing is sent back but the right.
    pair.executor.fault(P, Access::Write, &mut pair.executor_out);
    assert_eq!(pair.sent_by_executor(), [ToCaller::Request { page: P, access: Access::Write }]);
    pair.caller
        .receive(ToCaller::Request { page: P, access: Access::Write }, NOW, &mut pair.caller_out)
        .expect("legal");
    let answer = ToExecutor::Answer { page: P, left: Right::None, payload: Payload::None };
    assert_eq!(pair.caller_out, [Output::Send(answer), Output::Unmap(P)]);
    pair.settle();
    pair.executor_accesses(P, Access::Write);
    // The caller reads the page back, and then upgrades.
    assert_eq!(pair.caller_accesses(P, Access::Read), 2);
    pair.caller.fault(P, Access::Write, &mut pair.caller_out);
    let fetch = ToExecutor::Fetch { page: P, access: Access::Write, holds: true };
    assert_eq!(pair.caller_out, [Output::Send(fetch.clone())]);
    pair.caller_out.clear();
    pair.executor.receive(fetch, NOW, &mut pair.executor_out).expect("legal");
    let grant = ToCaller::Grant { page: P, access: Access::Write, payload: Payload::None };
    assert_eq!(pair.executor_out, [Output::Unmap(P), Output::Send(grant)]);
    assert!(pair.executor.is_dirty(P), "the executor's write is not in storage");
}

#[test]
fn true_faults_go_to_storage_and_coherence_faults_to_the_caller() {
    let mut pair = Pair::new(CoherenceSettings::default());
    pair.caller_accesses(P, Access::Write);
    pair.call(1, CoherenceMode::Coherent);
    pair.settle();
    pair.executor.fault(PageNumber(8), Access::Write, &mut pair.executor_out);
    assert_eq!(pair.executor_out, [Output::Load(PageNumber(8))]);
    pair.executor_out.clear();
    pair.executor.fault(P, Access::Read, &mut pair.executor_out);
    assert_eq!(pair.executor_out, [Output::Send(ToCaller::Request { page: P, access: Access::Read })]);
}

#[test]
fn the_loser_of_a_tie_asks_again_after_its_pause() {
    for favour in [Favour::Pool, Favour::Caller] {
        let mut pair = Pair::new(CoherenceSettings { favour, ..CoherenceSettings::default() });
        pair.caller_accesses(P, Access::Read);
        pair.call(1, CoherenceMode::Coherent);
        pair.settle();
        // Both may read, and both want to write.
        assert_eq!((pair.caller.right(P), pair.executor.right(P)), (Right::Read, Right::Read));
        pair.caller.fault(P, Access::Write, &mut pair.caller_out);
        pair.executor.fault(P, Access::Write, &mut pair.executor_out);
        assert_eq!(pair.settle(), 3, "of the two requests one is answered");
        let (won, lost) = ((Right::None, Right::Write), (Right::Write, Right::None));
        let at = CoherenceSettings::default().retry_pause;
        match favour {
            Favour::Pool => {
                assert_eq!((pair.caller.right(P), pair.executor.right(P)), won);
                assert_eq!((pair.caller.next_tick(), pair.executor.next_tick()), (Some(at), None));
                pair.caller.tick(at - Duration::from_nanos(1), &mut pair.caller_out);
                assert!(pair.caller_out.is_empty(), "the pause has not passed");
                pair.caller.tick(at, &mut pair.caller_out);
            }
            Favour::Caller => {
                assert_eq!((pair.caller.right(P), pair.executor.right(P)), lost);
                assert_eq!((pair.caller.next_tick(), pair.executor.next_tick()), (None, Some(at)));
                pair.executor.tick(at, &mut pair.executor_out);
            }
        }
        assert_eq!(pair.settle(), 2);
        assert_eq!((pair.caller.right(P), pair.executor.right(P)), if favour == Favour::Pool { lost } else { won });
    }
}

#[test]
fn a_request_lists_outstanding_faults() {
    let mut pair = Pair::new(CoherenceSettings::default());
    pair.caller_accesses(P, Access::Read);
    pair.caller.fault(PageNumber(20), Access::Write, &mut pair.caller_out);
    pair.caller.fault(PageNumber(21), Access::Read, &mut pair.caller_out);
    pair.call(1, CoherenceMode::Coherent);
    let Some(ToExecutor::Call { resident, .. }) = pair.sent_by_caller().pop() else { panic!("a call is sent") };
    let listed: Vec<_> = resident.runs().collect();
    assert_eq!(listed, [(7..8, Right::Read), (20..21, Right::Write), (21..22, Right::Read)]);
}

#[test]
fn a_queued_call_is_cancelled_and_a_running_one_is_not() {
    let settings = CoherenceSettings { contexts_max: 1, queued_max: 1, ..CoherenceSettings::default() };
    let mut pair = Pair::new(settings);
    pair.call(1, CoherenceMode::Coherent);
    pair.call(2, CoherenceMode::Coherent);
    let error = pair.caller.call(CallId(3), CoherenceMode::Coherent, &mut pair.caller_out).expect_err("two are open");
    assert_eq!((&error, error.kind()), (&CoherenceError::TooManyCalls(2), ErrorKind::Retry));
    pair.settle();
    for (call, output) in
        [(1, Output::CancelDeclined(CallId(1))), (2, Output::Finished(CallId(2), CallOutcome::Cancelled))]
    {
        pair.caller.try_cancel(CallId(call), &mut pair.caller_out).expect("it is open");
        let cancel = pair.sent_by_caller().remove(0);
        pair.executor.receive(cancel, NOW, &mut pair.executor_out).expect("legal");
        let answer = pair.sent_by_executor().remove(0);
        pair.caller.receive(answer, NOW, &mut pair.caller_out).expect("legal");
        assert_eq!(std::mem::take(&mut pair.caller_out), [output]);
    }
    let gone = pair.caller.try_cancel(CallId(2), &mut pair.caller_out);
    assert_eq!(gone, Err(CoherenceError::WrongCall(CallId(2))));
    pair.executor.finish(CallId(1), &mut pair.executor_out).expect("it runs");
    assert!(!pair.executor.has_context(), "no call is left");
}

#[test]
fn an_executor_whose_queue_is_full_refuses() {
    let settings = CoherenceSettings { contexts_max: 1, queued_max: 0, ..CoherenceSettings::default() };
    let mut executor = ExecutorSide::new(settings);
    let mut out = Vec::new();
    for call in [CallId(1), CallId(2)] {
        let message = ToExecutor::Call { call, mode: CoherenceMode::Coherent, resident: PageList::default() };
        executor.receive(message, NOW, &mut out).expect("legal");
    }
    let busy = ToCaller::Reply { call: CallId(2), outcome: CallOutcome::Busy, written: PageList::default() };
    assert_eq!(out, [Output::Start(CallId(1)), Output::Send(busy)]);
}

#[test]
fn all_calls_at_one_time_have_one_mode() {
    let mut pair = Pair::new(CoherenceSettings::default());
    pair.call(1, CoherenceMode::Pso);
    let error = pair.caller.call(CallId(2), CoherenceMode::Off, &mut pair.caller_out).expect_err("another mode runs");
    assert_eq!((&error, error.kind()), (&CoherenceError::OtherMode, ErrorKind::Retry));
    pair.settle();
    pair.executor.finish(CallId(1), &mut pair.executor_out).expect("it runs");
    pair.settle();
    pair.call(2, CoherenceMode::Off);
}

#[test]
fn syncmem_sends_bytes_with_coherence_off_and_pages_otherwise() {
    let mut pair = Pair::new(CoherenceSettings::default());
    pair.call(1, CoherenceMode::Off);
    for page in [7, 8, 9] {
        pair.caller_accesses(PageNumber(page), Access::Write);
    }
    let start = 7 * PAGE_BYTES + 4000;
    assert_eq!(pair.caller.syncmem(start, 0, &mut pair.caller_out), None);
    assert_eq!(pair.caller.pull(start, 0, &mut pair.caller_out), None);
    assert_eq!(pair.sent_by_caller(), [], "a range without bytes is no range");
    assert_eq!(pair.caller.syncmem(start, 96 + PAGE_BYTES + 8, &mut pair.caller_out), None);
    let part = |page, offset, count| PageBytes { page: PageNumber(page), offset, count };
    let home = ToExecutor::Home { page: PageNumber(8), left: Right::Write, payload: Payload::Diff };
    assert_eq!(pair.sent_by_caller(), [ToExecutor::Push(part(7, 4000, 96)), home, ToExecutor::Push(part(9, 0, 8))]);
    assert_eq!(pair.caller.pull(start, 8, &mut pair.caller_out), None);
    assert_eq!(pair.sent_by_caller(), [ToExecutor::Pull(part(7, 4000, 8))]);
    pair.executor.finish(CallId(1), &mut pair.executor_out).expect("it runs");
    pair.settle();
    // Without calls, what is dirty in the touched pages goes home whole, and the copies stay readable.
    pair.caller.syncmem(start, 8, &mut pair.caller_out);
    let home = ToExecutor::Home { page: P, left: Right::Read, payload: Payload::Page };
    assert_eq!(pair.sent_by_caller(), [home]);
}

#[test]
fn weak_ordering_sends_nothing_while_both_sides_write_a_page() {
    let mut pair = Pair::new(CoherenceSettings::default());
    pair.caller_accesses(P, Access::Read);
    pair.call(1, CoherenceMode::WeakOrdering);
    pair.settle();
    assert_eq!(pair.caller_accesses(P, Access::Write), 0);
    assert_eq!(pair.executor_accesses(P, Access::Write), 0);
    pair.executor.finish(CallId(1), &mut pair.executor_out).expect("it runs");
    let reply = pair.sent_by_executor().pop().expect("a reply is sent");
    pair.caller.receive(reply, NOW, &mut pair.caller_out).expect("legal");
    let home = ToExecutor::Home { page: P, left: Right::None, payload: Payload::Diff };
    assert_eq!(pair.sent_by_caller(), [home], "the caller's bytes merge, and its copy goes");
}

#[test]
fn a_killed_functions_reply_lists_what_it_wrote() {
    let mut pair = Pair::new(CoherenceSettings::default());
    pair.call(1, CoherenceMode::Coherent);
    pair.settle();
    pair.executor_accesses(P, Access::Write);
    pair.executor_accesses(PageNumber(8), Access::Read);
    // Given back since, and still not whole.
    pair.caller_accesses(P, Access::Read);
    pair.executor.kill(CallId(1), &mut pair.executor_out).expect("it runs");
    let Some(ToCaller::Reply { outcome, written, .. }) = pair.sent_by_executor().pop() else {
        panic!("a reply is sent")
    };
    assert_eq!((outcome, written.runs().collect::<Vec<_>>()), (CallOutcome::Killed, vec![(7..8, Right::Write)]));
}

#[test]
fn pages_that_were_left_writable_count_as_written_by_a_killed_function() {
    let mut pair = Pair::new(CoherenceSettings::default());
    pair.call(1, CoherenceMode::Coherent);
    pair.settle();
    pair.executor_accesses(P, Access::Write);
    pair.executor.finish(CallId(1), &mut pair.executor_out).expect("it runs");
    pair.settle();
    // Without a fault: the shim has left the page as it was.
    pair.call(2, CoherenceMode::Coherent);
    pair.settle();
    let mut left = RunMap::default();
    left.insert(7..8, ());
    pair.executor.note_written(&left);
    pair.executor.kill(CallId(2), &mut pair.executor_out).expect("it runs");
    let Some(ToCaller::Reply { outcome, written, .. }) = pair.sent_by_executor().pop() else {
        panic!("a reply is sent")
    };
    assert_eq!((outcome, written.runs().collect::<Vec<_>>()), (CallOutcome::Killed, vec![(7..8, Right::Write)]));
}

/// A caller that held a page asked to write it while the reply of a killed function was on its way. The reply listed the page, the
/// caller dropped its copy, and then got the right to write without contents (seed 235).
#[test]
fn the_reply_of_a_killed_function_drops_no_copy() {
    let mut pair = Pair::new(CoherenceSettings::default());
    pair.call(1, CoherenceMode::Coherent);
    pair.settle();
    pair.executor_accesses(P, Access::Write);
    pair.caller_accesses(P, Access::Read);
    pair.executor.kill(CallId(1), &mut pair.executor_out).expect("it runs");
    pair.caller.fault(P, Access::Write, &mut pair.caller_out);
    pair.settle();
    assert_eq!(pair.caller.right(P), Right::Write);
}

#[test]
fn a_lost_executor_leaves_exactly_its_writable_pages_in_doubt() {
    let mut pair = Pair::new(CoherenceSettings::default());
    for page in [7, 8, 9] {
        pair.caller_accesses(PageNumber(page), Access::Write);
    }
    pair.call(1, CoherenceMode::Coherent);
    pair.settle();
    pair.executor_accesses(PageNumber(8), Access::Write);
    pair.executor_accesses(PageNumber(9), Access::Read);
    let loss = pair.caller.lost(&RunMap::default());
    assert_eq!((loss.calls.clone(), loss.kind()), (vec![CallId(1)], ErrorKind::Ambiguous));
    let torn: Vec<u64> = (5..12).filter(|page| loss.may_be_torn(PageNumber(*page))).collect();
    assert_eq!(torn, [5, 6, 8, 10, 11], "7 is the caller's, and 9 was only read");

    // Without a call only contents that were on their way are in doubt.
    let mut pair = Pair::new(CoherenceSettings::default());
    pair.caller_accesses(P, Access::Write);
    pair.caller.evict(P, &mut pair.caller_out).expect("it is not on its way");
    let mut unconfirmed = RunMap::default();
    unconfirmed.set(P, ());
    let loss = pair.caller.lost(&unconfirmed);
    assert!(loss.calls.is_empty() && loss.may_be_torn(P) && !loss.may_be_torn(PageNumber(8)));
}

#[test]
fn what_the_protocol_forbids_is_an_error_and_changes_nothing() {
    let mut pair = Pair::new(CoherenceSettings::default());
    pair.caller_accesses(P, Access::Read);
    pair.call(1, CoherenceMode::Coherent);
    pair.settle();
    let (caller, executor) = (pair.caller.clone(), pair.executor.clone());
    let mut listed = RunMap::default();
    listed.insert(0..1 << 30, Right::Write);
    let resident = PageList::of_rights(&listed).expect("one run");
    let to_executor = [
        ToExecutor::Answer { page: P, left: Right::None, payload: Payload::Page },
        ToExecutor::Home { page: P, left: Right::Write, payload: Payload::Page },
        ToExecutor::Call { call: CallId(1), mode: CoherenceMode::Coherent, resident: PageList::default() },
        ToExecutor::Call { call: CallId(2), mode: CoherenceMode::Off, resident: PageList::default() },
        ToExecutor::Call { call: CallId(2), mode: CoherenceMode::Coherent, resident },
    ];
    for message in to_executor {
        let error = pair.executor.receive(message.clone(), NOW, &mut pair.executor_out).expect_err("it is forbidden");
        assert!(matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Rejected), "{message:?}: {error}");
    }
    let to_caller = [
        ToCaller::Grant { page: P, access: Access::Write, payload: Payload::Page },
        ToCaller::Reply { call: CallId(2), outcome: CallOutcome::Done, written: PageList::default() },
        ToCaller::CancelAnswer { call: CallId(2), removed: true },
    ];
    for message in to_caller {
        let error = pair.caller.receive(message.clone(), NOW, &mut pair.caller_out).expect_err("it is forbidden");
        assert!(matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Rejected), "{message:?}: {error}");
    }
    assert!((pair.caller, pair.executor) == (caller, executor));
    assert!(pair.caller_out.is_empty() && pair.executor_out.is_empty());
}

#[test]
fn a_page_on_its_way_is_not_evicted() {
    let mut pair = Pair::new(CoherenceSettings::default());
    pair.caller.fault(P, Access::Read, &mut pair.caller_out);
    let error = pair.caller.evict(P, &mut pair.caller_out).expect_err("it is awaited");
    assert_eq!((&error, error.kind()), (&CoherenceError::InTransit(P), ErrorKind::Retry));
    let fetch = pair.sent_by_caller().remove(0);
    pair.executor.receive(fetch, NOW, &mut pair.executor_out).expect("legal");
    assert_eq!(pair.executor.evict(P, &mut pair.executor_out), Err(CoherenceError::InTransit(P)));
}

#[test]
fn a_dropped_page_is_the_callers_and_costs_one_message() {
    let mut pair = Pair::new(CoherenceSettings::default());
    pair.call(1, CoherenceMode::Coherent);
    pair.settle();
    pair.executor_accesses(P, Access::Write);
    pair.caller.discard(5..9, &mut pair.caller_out);
    assert_eq!(pair.settle(), 1);
    assert_eq!((pair.caller.right(P), pair.executor.right(P)), (Right::Write, Right::None));
    assert!(!pair.executor.is_present(P) && !pair.executor.is_dirty(P), "nothing of the page is left");
    // The executor asks for the zeros as for any other contents.
    assert_eq!(pair.executor_accesses(P, Access::Read), 2);
    assert_eq!((pair.caller.right(P), pair.executor.right(P)), (Right::Read, Right::Read));
    // What the function wrote there before is nowhere any more, so it cannot be incomplete.
    pair.executor.kill(CallId(1), &mut pair.executor_out).expect("it runs");
    let Some(ToCaller::Reply { written, .. }) = pair.sent_by_executor().pop() else { panic!("a reply is sent") };
    assert!(written.runs().next().is_none());
}

#[test]
fn a_caller_that_begins_with_all_pages_lists_them_in_one_run() {
    let mut pair = Pair::new(CoherenceSettings::default());
    pair.caller = CallerSide::owning_all(CoherenceSettings::default());
    assert_eq!(pair.caller_accesses(P, Access::Write), 0, "nobody else has pages");
    pair.call(1, CoherenceMode::Coherent);
    pair.settle();
    assert_eq!(pair.executor.right(P), Right::None);
    assert_eq!(pair.executor_accesses(P, Access::Write), 2);
    pair.call(2, CoherenceMode::Coherent);
    let Some(ToExecutor::Call { resident, .. }) = pair.sent_by_caller().pop() else { panic!("a call is sent") };
    let listed: Vec<_> = resident.runs().collect();
    assert_eq!(listed, [(0..7, Right::Write), (8..PAGE_NUMBERS, Right::Write)]);
}

/// A page was asked for, dropped, and sent home by `syncmem` before the grant came. The caller could then only read it, took the grant
/// for new, and had the old contents again (seed 96).
#[test]
fn a_grant_that_a_discard_has_overtaken_changes_nothing() {
    let mut pair = Pair::new(CoherenceSettings::default());
    pair.call(1, CoherenceMode::Coherent);
    pair.settle();
    pair.executor_accesses(P, Access::Write);
    pair.caller.fault(P, Access::Read, &mut pair.caller_out);
    pair.caller.discard(7..8, &mut pair.caller_out);
    pair.caller.syncmem(7 * PAGE_BYTES, PAGE_BYTES, &mut pair.caller_out);
    for message in pair.sent_by_caller() {
        pair.executor.receive(message, NOW, &mut pair.executor_out).expect("legal");
    }
    let grant = pair.sent_by_executor().remove(0);
    assert_eq!(grant, ToCaller::Grant { page: P, access: Access::Read, payload: Payload::Page });
    pair.caller.receive(grant, NOW, &mut pair.caller_out).expect("legal");
    assert_eq!(pair.caller_out, [Output::Map { page: P, writable: false }, Output::Wake(P)]);
    assert_eq!((pair.caller.right(P), pair.executor.right(P)), (Right::Read, Right::Read));
}

/// A call listed a page as one that the caller might read, because a thread had asked to read it. The program had dropped it since, so
/// that the caller could write it, and both sides could access it.
#[test]
fn a_call_lists_what_a_discard_has_overtaken_as_the_callers() {
    let mut pair = Pair::new(CoherenceSettings::default());
    pair.caller.fault(P, Access::Read, &mut pair.caller_out);
    pair.caller.discard(7..8, &mut pair.caller_out);
    pair.call(1, CoherenceMode::Coherent);
    pair.settle();
    assert_eq!((pair.caller.right(P), pair.executor.right(P)), (Right::Write, Right::None));
}

/// With coherence off, bytes of a pull arrived after the program had dropped the page, and were there again (seed 711).
#[test]
fn a_pull_that_a_discard_has_overtaken_changes_nothing() {
    let mut pair = Pair::new(CoherenceSettings::default());
    pair.call(1, CoherenceMode::Off);
    pair.caller_accesses(P, Access::Read);
    pair.caller_out.clear();
    let installs = |pair: &mut Pair| {
        for message in pair.sent_by_caller() {
            pair.executor.receive(message, NOW, &mut pair.executor_out).expect("legal");
        }
        let pulled = pair.sent_by_executor().remove(0);
        pair.caller.receive(pulled, NOW, &mut pair.caller_out).expect("legal");
        pair.caller_out.drain(..).any(|output| output == Output::Install(P))
    };
    pair.caller.pull(7 * PAGE_BYTES, 8, &mut pair.caller_out);
    pair.caller.discard(7..8, &mut pair.caller_out);
    assert!(!installs(&mut pair), "the bytes are older than the discard");
    pair.caller.pull(7 * PAGE_BYTES, 8, &mut pair.caller_out);
    assert_eq!(pair.sent_by_caller(), [], "the executor has nothing of the page");
    pair.executor_accesses(P, Access::Write);
    pair.caller.pull(7 * PAGE_BYTES, 8, &mut pair.caller_out);
    assert!(installs(&mut pair), "these are newer");
    let bytes = PageBytes { page: P, offset: 0, count: 8 };
    pair.caller.receive(ToCaller::Pulled(bytes), NOW, &mut pair.caller_out).expect_err("nobody asked for them");
}

/// If a discard is lost, the pool has old contents, and so has it if the zeros that went home are.
#[test]
fn a_discard_that_is_not_confirmed_leaves_its_pages_in_doubt() {
    let mut pair = Pair::new(CoherenceSettings::default());
    pair.call(1, CoherenceMode::Off);
    pair.settle();
    pair.caller.discard(7..9, &mut pair.caller_out);
    pair.executor.finish(CallId(1), &mut pair.executor_out).expect("it runs");
    let reply = pair.sent_by_executor().remove(0);
    pair.caller.receive(reply, NOW, &mut pair.caller_out).expect("legal");
    pair.caller.evict(P, &mut pair.caller_out).expect("it is not on its way");
    let home = ToExecutor::Home { page: P, left: Right::None, payload: Payload::Page };
    assert_eq!(pair.sent_by_caller(), [ToExecutor::Discard { first: P, count: 2 }, home]);
    let mut unconfirmed = RunMap::default();
    unconfirmed.insert(7..9, ());
    let loss = pair.caller.lost(&unconfirmed);
    assert!(loss.may_be_torn(P), "the caller has no copy");
    assert!(!loss.may_be_torn(PageNumber(8)) && pair.caller.is_dirty(PageNumber(8)), "the caller has the zeros");
}
