//! The shims of both sides: what the state machines say is done to memory, messages and threads.

use page_coherence::{
    CallOutcome, CallerOutput, ExecutorOutput, Output, PageBytes, PageNumber, Payload, ToCaller, ToExecutor,
};

use crate::system::{Body, Copied, Doing, Side, System, Thread, WORDS};

impl System {
    fn wake(&mut self, side: Side, page: u64) {
        for thread in self.threads.iter_mut().filter(|thread| thread.side == side) {
            if thread.doing == Doing::Faulted(page) {
                thread.doing = Doing::Running;
            }
        }
    }

    pub fn run_caller_outputs(&mut self, outputs: Vec<CallerOutput>, body: &Body) {
        for output in outputs {
            match output {
                Output::Map { page, writable } => match self.copies.get_mut(&page.0) {
                    Some(copy) => copy.writable = Some(writable),
                    None => self.fail(format!("the caller maps page {page:?} without contents")),
                },
                Output::Protect(page) => {
                    if let Some(writable) = self.copies.get_mut(&page.0).and_then(|copy| copy.writable.as_mut()) {
                        *writable = false;
                    }
                }
                Output::Unmap(page) => _ = self.copies.remove(&page.0),
                Output::Install(page) => self.install_at_caller(page.0, body),
                Output::Twin(page) => {
                    if let Some(copy) = self.copies.get_mut(&page.0) {
                        copy.twin = Some(copy.contents);
                    }
                }
                Output::DropTwin(page) => {
                    if let Some(copy) = self.copies.get_mut(&page.0) {
                        copy.twin = None;
                    }
                }
                Output::Send(message) => {
                    let body = self.caller_body(&message);
                    self.sent[0] += u64::from(self.follows_floors);
                    self.to_executor.push_back((message, body));
                }
                Output::Wake(page) => self.wake(Side::Caller, page.0),
                Output::Finished(call, outcome) => {
                    for thread in &mut self.threads {
                        if thread.doing == Doing::Calling(call) {
                            thread.doing = Doing::Running;
                        }
                    }
                    let ran = self.threads.iter().any(|thread| thread.call == Some(call));
                    if outcome == CallOutcome::Cancelled && ran {
                        self.fail(format!("call {call:?} is cancelled and has run"));
                    }
                }
                Output::CancelDeclined(_) => {}
                other => self.fail(format!("the caller does {other:?}")),
            }
        }
    }

    fn install_at_caller(&mut self, page: u64, body: &Body) {
        match body {
            Body::Page(contents) => {
                let copy = Copied { contents: *contents, twin: None, writable: None };
                self.copies.insert(page, copy);
            }
            Body::Words(words) => {
                if let Some(copy) = self.copies.get_mut(&page) {
                    for (place, value) in words {
                        let is_written = copy.twin.is_some_and(|twin| twin[*place] != copy.contents[*place]);
                        if !is_written {
                            copy.contents[*place] = *value;
                        }
                        if let Some(twin) = &mut copy.twin {
                            twin[*place] = *value;
                        }
                    }
                }
            }
            Body::None | Body::Zeros(_) | Body::Service(_) => {
                self.fail("the caller installs a message without a body".to_owned())
            }
        }
    }

    fn caller_body(&mut self, message: &ToExecutor) -> Body {
        let copy = |page: &PageNumber| self.copies.get(&page.0).cloned();
        match message {
            ToExecutor::Home { page, payload: Payload::Page, .. }
            | ToExecutor::Answer { page, payload: Payload::Page, .. } => match copy(page) {
                Some(copy) => Body::Page(copy.contents),
                None => Body::None,
            },
            ToExecutor::Home { page, payload: Payload::Diff, .. }
            | ToExecutor::Answer { page, payload: Payload::Diff, .. } => {
                let copy = copy(page).expect("a page with a twin is there");
                let twin = copy.twin.expect("it has a twin");
                let changed = (0..WORDS).filter(|place| twin[*place] != copy.contents[*place]);
                Body::Words(changed.map(|place| (place, copy.contents[place])).collect())
            }
            ToExecutor::Push(range) => {
                let copy = self.copies.get_mut(&range.page.0).expect("a pushed page is there");
                let twin = copy.twin.as_mut().expect("it has a twin");
                let changed: Vec<usize> = words(*range).filter(|place| twin[*place] != copy.contents[*place]).collect();
                changed.iter().for_each(|place| twin[*place] = copy.contents[*place]);
                Body::Words(changed.into_iter().map(|place| (place, copy.contents[place])).collect())
            }
            // The newest value of a word that is just being dropped.
            ToExecutor::Discard { first, .. } => Body::Zeros(self.truth.newest[&(first.0, 0)]),
            _ => Body::None,
        }
    }

    pub fn run_executor_outputs(&mut self, outputs: Vec<ExecutorOutput>, body: &Body) {
        for output in outputs {
            match output {
                Output::Map { page, writable } => _ = self.table.insert(page.0, writable),
                Output::Protect(page) => {
                    if let Some(writable) = self.table.get_mut(&page.0) {
                        *writable = false;
                    }
                }
                Output::Unmap(page) => _ = self.table.remove(&page.0),
                Output::Install(page) => match body {
                    Body::Page(contents) => _ = self.home.insert(page.0, *contents),
                    Body::Words(words) => {
                        let home = self.home.get_mut(&page.0).expect("a page is filled before it is changed");
                        words.iter().for_each(|(place, value)| home[*place] = *value);
                    }
                    Body::None | Body::Zeros(_) | Body::Service(_) => {
                        self.fail("the executor installs a message without a body".to_owned());
                    }
                },
                Output::Send(message) => {
                    let body = match &message {
                        ToCaller::Grant { page, payload: Payload::Page, .. } => {
                            Body::Page(*self.home.get(&page.0).expect("a granted page is there"))
                        }
                        ToCaller::Pulled(range) => {
                            let home = self.home[&range.page.0];
                            Body::Words(words(*range).map(|place| (place, home[place])).collect())
                        }
                        _ => Body::None,
                    };
                    self.sent[1] += u64::from(self.follows_floors);
                    self.to_caller.push_back((message, body));
                }
                Output::Wake(page) => self.wake(Side::Executor, page.0),
                Output::Load(page) => _ = self.loading.insert(page.0),
                Output::Place(page) | Output::Fill(page) => {
                    let contents = self.storage.get(&page.0).copied().unwrap_or_default();
                    self.home.insert(page.0, contents);
                }
                Output::Store(page) => _ = self.storage.insert(page.0, self.home[&page.0]),
                Output::Free(page) => _ = self.home.remove(&page.0),
                Output::Drop(pages) => {
                    let Body::Zeros(zeros) = body else {
                        self.fail("the executor drops pages that the caller has not dropped".to_owned());
                        continue;
                    };
                    for page in pages {
                        self.table.remove(&page);
                        self.home.remove(&page);
                        self.loading.remove(&page);
                        self.storage.insert(page, [*zeros; WORDS]);
                    }
                }
                Output::Start(call) => self.threads.push(Thread {
                    side: Side::Executor,
                    program: (call.0 % 10) as usize,
                    next: 0,
                    doing: Doing::Running,
                    call: Some(call),
                    registers: [0; 2],
                }),
                Output::Stop(call) => {
                    let stopped = self.threads.iter_mut().filter(|thread| thread.call == Some(call));
                    stopped.for_each(|thread| thread.doing = Doing::Idle);
                }
                Output::EndContext => self.table.clear(),
                other => self.fail(format!("the executor does {other:?}")),
            }
        }
    }
}

/// The words that a range stands for.
fn words(range: PageBytes) -> impl Iterator<Item = usize> {
    let (from, count) = (usize::from(range.offset), usize::from(range.count));
    from.min(WORDS)..(from + count).min(WORDS)
}
