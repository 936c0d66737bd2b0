//! A contract for tests of stubs: each argument names an operation, such as a read or a write, which the contract
//! performs on its stub.

use base::Bytes;

use crate::key::{self, KeyRange};
use crate::{Contract, ContractError, ContractResponse, ContractStub, HistoryCursor, RangeCursor, async_trait};

/// Runs a script of stub operations, one an argument, each with words separated by spaces:
///
/// | word | effect |
/// |---|---|
/// | `get k` | reads; appends `k=value;` or `k!;` to the answer |
/// | `put k v` | writes |
/// | `delete k` | deletes |
/// | `range a b n` | reads at most `n` entries from `a` to `b` (`-` is an open bound), appends each as `k=value;` |
/// | `history k` | reads the history of a key; appends each change as `transaction=value;` or `transaction!;` |
/// | `attributes t a…` | reads the composite keys of type `t` that start with `a…`, appends each one's parts |
/// | `put-composite v t a…` | writes the composite key of type `t` and attributes `a…` |
/// | `event name payload` | sets the event |
/// | `call contract function args…` | calls on this channel; appends `status:payload;` |
/// | `fail message` | ends with an application error |
///
/// The function's name does not matter. It is in no registry unless a test puts it there.
#[derive(Debug, Clone, Copy, Default)]
pub struct ProbeContract;

#[async_trait]
impl Contract for ProbeContract {
    fn name(&self) -> &str {
        "probe"
    }

    async fn invoke(
        &self,
        tx: &mut dyn ContractStub,
        _function: &str,
        args: &[Bytes],
    ) -> Result<ContractResponse, ContractError> {
        let mut answer = String::new();
        for step in args {
            let step = String::from_utf8_lossy(step).into_owned();
            let words: Vec<&str> = step.split(' ').collect();
            perform(tx, &words, &mut answer).await?;
        }
        Ok(ContractResponse::success(answer))
    }
}

async fn perform(tx: &mut dyn ContractStub, words: &[&str], answer: &mut String) -> Result<(), ContractError> {
    match words {
        ["get", key] => match tx.get_state(key).await? {
            Some(value) => append(answer, key, &value),
            None => answer.push_str(&format!("{key}!;")),
        },
        ["history", key] => {
            let mut history = HistoryCursor::open(tx, key).await?;
            while let Some(change) = history.next(tx).await? {
                match change.value {
                    Some(value) => append(answer, change.tx_id.as_str(), &value),
                    None => answer.push_str(&format!("{}!;", change.tx_id)),
                }
            }
        }
        ["put", key, value] => tx.put_state(key, Bytes::copy_from_slice(value.as_bytes()))?,
        ["delete", key] => tx.delete_state(key)?,
        ["range", start, end, count] => {
            let bound = |word: &str| if word == "-" { String::new() } else { word.to_owned() };
            let count = count.parse::<usize>().map_err(|_| malformed(words))?;
            let range = KeyRange::simple(&bound(start), &bound(end))?;
            let mut entries = RangeCursor::open(tx, range).await?.with_page_entries(count);
            for _ in 0..count {
                let Some(entry) = entries.next(tx).await? else { break };
                append(answer, &entry.key, &entry.value);
            }
            entries.close(tx);
        }
        ["attributes", object_type, attributes @ ..] => {
            let mut entries = RangeCursor::open(tx, KeyRange::partial_composite(object_type, attributes)?).await?;
            while let Some(entry) = entries.next(tx).await? {
                let (_, attributes) = key::split_composite(&entry.key)?;
                append(answer, &attributes.join("/"), &entry.value);
            }
        }
        ["put-composite", value, object_type, attributes @ ..] => {
            let key = key::composite(object_type, attributes)?;
            tx.put_state(&key, Bytes::copy_from_slice(value.as_bytes()))?;
        }
        ["event", name, payload] => tx.set_event(name, Bytes::copy_from_slice(payload.as_bytes()))?,
        ["call", contract, args @ ..] => {
            let args = args.iter().map(|arg| Bytes::copy_from_slice(arg.as_bytes())).collect();
            let response = tx.invoke_contract(contract, args, "").await?;
            let payload = String::from_utf8_lossy(&response.payload);
            answer.push_str(&format!("{}:{payload}{};", response.status, response.message));
        }
        ["fail", message] => return Err(ContractError::application(*message)),
        _ => return Err(malformed(words)),
    }
    Ok(())
}

fn append(answer: &mut String, key: &str, value: &[u8]) {
    answer.push_str(&format!("{key}={};", String::from_utf8_lossy(value)));
}

fn malformed(words: &[&str]) -> ContractError {
    ContractError::application(format!("not a step: {}", words.join(" ")))
}
