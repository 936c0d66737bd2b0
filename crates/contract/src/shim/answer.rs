//! Answers the requests of one call from its stub.
//!
//! 1. [`CallRequests::answer`] decodes the request, after counting the entries of a batch, asks the stub, and encodes the
//!    result.
//! 2. What the stub refuses goes to the chaincode, which decides what to do about it. A failure of the world state ends the
//!    call instead ([`RequestError::Failed`]).
//!
//! As in Fabric, a call that initialises the contract has no access to private data.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use base::{Bytes, ErrorKind};
use prost::Message;
use prost::bytes::Buf;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use proto::protos::chaincode_message::Type;
use proto::protos::write_record::Type as WriteType;
use proto::protos::{
    ChaincodeMessage, ChaincodeSpec, DelState, GetHistoryForKey, GetQueryResult, GetState, GetStateByRange,
    GetStateMetadata, GetStateMultiple, GetStateMultipleResult, PurgePrivateState, PutState, PutStateMetadata,
    QueryMetadata, QueryResponse, QueryResponseMetadata, QueryResultBytes, QueryStateClose, QueryStateNext, Response,
    StateMetadata, StateMetadataResult, WriteBatchState, WriteRecord,
};

use super::query::{OpenQueries, QUERY_ROWS_MAX, QuerySource, encode_row};
use crate::key::KeyRange;
use crate::{BookmarkedPage, ContractStub, Metadata, StubError};

/// Writes of one WRITE_BATCH_STATE, and keys of one GET_STATE_MULTIPLE. Fabric's peers offer as many.
pub const BATCH_MAX: usize = 1000;
/// Fields of the input with which a chaincode calls another one: arguments, above all.
const INPUT_FIELDS_MAX: usize = 4096;

/// Why a request has no result.
#[derive(Debug)]
pub(super) enum RequestError {
    /// The chaincode gets this text.
    Refused(String),
    /// The call ends: the state could not serve.
    Failed(StubError),
}

impl From<StubError> for RequestError {
    fn from(error: StubError) -> Self {
        match error.kind() {
            ErrorKind::Rejected => RequestError::Refused(error.to_string()),
            _ => RequestError::Failed(error),
        }
    }
}

fn refused<T>(problem: impl Into<String>) -> Answer<T> {
    Err(RequestError::Refused(problem.into()))
}

type Answer<T> = Result<T, RequestError>;

/// The requests of one call.
pub(super) struct CallRequests {
    queries: OpenQueries,
    is_init: bool,
}

impl CallRequests {
    pub(super) fn new(is_init: bool) -> CallRequests {
        CallRequests { queries: OpenQueries::default(), is_init }
    }

    /// The payload of the RESPONSE to one request.
    pub(super) async fn answer(
        &mut self,
        tx: &mut dyn ContractStub,
        kind: Type,
        request: ChaincodeMessage,
    ) -> Answer<Bytes> {
        let payload = request.payload;
        match kind {
            Type::GetState => self.get_state(tx, decode(payload)?).await,
            Type::GetStateMultiple => self.get_states(tx, payload).await,
            Type::GetPrivateDataHash => self.get_private_hash(tx, decode(payload)?).await,
            Type::PutState => self.put_state(tx, decode(payload)?).await.map(|()| Bytes::new()),
            Type::DelState => self.delete_state(tx, decode(payload)?).await.map(|()| Bytes::new()),
            Type::PurgePrivateData => self.purge_private(tx, decode(payload)?).await.map(|()| Bytes::new()),
            Type::WriteBatchState => self.write_batch(tx, payload).await.map(|()| Bytes::new()),
            Type::GetStateMetadata => self.get_metadata(tx, decode(payload)?).await,
            Type::PutStateMetadata => self.put_metadata(tx, decode(payload)?).await.map(|()| Bytes::new()),
            Type::GetStateByRange => self.get_range(tx, decode(payload)?).await.map(encode),
            Type::GetQueryResult => self.get_query_result(tx, decode(payload)?).await.map(encode),
            Type::GetHistoryForKey => self.get_history(tx, decode(payload)?).await.map(encode),
            Type::QueryStateNext => self.next_batch(tx, decode(payload)?).await.map(encode),
            Type::QueryStateClose => {
                let QueryStateClose { id } = decode(payload)?;
                self.queries.close(tx, &id);
                Ok(encode(QueryResponse { id, ..QueryResponse::default() }))
            }
            Type::InvokeChaincode => invoke(tx, payload, request.txid).await,
            _ => refused("this peer does not understand the request"),
        }
    }

    /// Closes what the chaincode left open.
    pub(super) fn finish(&mut self, tx: &mut dyn ContractStub) {
        self.queries.close_all(tx);
    }

    /// Whether a request is one for private data, which must then be allowed.
    fn is_private(&self, collection: &str) -> Answer<bool> {
        match collection {
            "" => Ok(false),
            _ => self.check_private().map(|()| true),
        }
    }

    fn check_private(&self) -> Answer<()> {
        match self.is_init {
            true => refused("private data is not available to a call that initialises the chaincode"),
            false => Ok(()),
        }
    }

    async fn get_state(&self, tx: &mut dyn ContractStub, request: GetState) -> Answer<Bytes> {
        let value = match self.is_private(&request.collection)? {
            true => tx.get_private(&request.collection, &request.key).await?,
            false => tx.get_state(&request.key).await?,
        };
        Ok(value.unwrap_or_default())
    }

    async fn get_states(&self, tx: &mut dyn ContractStub, payload: Bytes) -> Answer<Bytes> {
        if fields(&payload, &[])? > BATCH_MAX + 1 {
            return refused(format!("at most {BATCH_MAX} keys are read at once"));
        }
        let GetStateMultiple { keys, collection } = decode(payload)?;
        let values = match self.is_private(&collection)? {
            false => tx.get_states(&keys).await?,
            true => {
                let mut values = Vec::with_capacity(keys.len());
                for key in &keys {
                    values.push(tx.get_private(&collection, key).await?);
                }
                values
            }
        };
        let values = values.into_iter().map(Option::unwrap_or_default).collect();
        Ok(encode(GetStateMultipleResult { values }))
    }

    async fn get_private_hash(&self, tx: &mut dyn ContractStub, request: GetState) -> Answer<Bytes> {
        self.check_private()?;
        Ok(tx.get_private_hash(&request.collection, &request.key).await?.unwrap_or_default())
    }

    async fn put_state(&self, tx: &mut dyn ContractStub, request: PutState) -> Answer<()> {
        match self.is_private(&request.collection)? {
            true => tx.put_private(&request.collection, &request.key, request.value).await?,
            false => tx.put_state(&request.key, request.value)?,
        }
        Ok(())
    }

    async fn delete_state(&self, tx: &mut dyn ContractStub, request: DelState) -> Answer<()> {
        match self.is_private(&request.collection)? {
            true => tx.delete_private(&request.collection, &request.key).await?,
            false => tx.delete_state(&request.key)?,
        }
        Ok(())
    }

    async fn purge_private(&self, tx: &mut dyn ContractStub, request: PurgePrivateState) -> Answer<()> {
        match self.is_private(&request.collection)? {
            true => Ok(tx.purge_private(&request.collection, &request.key).await?),
            false => refused("only private data can be purged"),
        }
    }

    /// Writes in order. If one is refused, those before it stay recorded, as in Fabric.
    async fn write_batch(&self, tx: &mut dyn ContractStub, payload: Bytes) -> Answer<()> {
        if fields(&payload, &[])? > BATCH_MAX {
            return refused(format!("at most {BATCH_MAX} writes are taken at once"));
        }
        for record in decode::<WriteBatchState>(payload)?.rec {
            let kind = record.r#type();
            let WriteRecord { key, value, collection, metadata, .. } = record;
            match kind {
                WriteType::PutState => self.put_state(tx, PutState { key, value, collection }).await?,
                WriteType::DelState => self.delete_state(tx, DelState { key, collection }).await?,
                WriteType::PurgePrivateData => {
                    self.purge_private(tx, PurgePrivateState { key, collection }).await?;
                }
                WriteType::PutStateMetadata => {
                    self.put_metadata(tx, PutStateMetadata { key, collection, metadata }).await?;
                }
                WriteType::Undefined => return refused("a record of the batch is of no known type"),
            }
        }
        Ok(())
    }

    async fn get_metadata(&self, tx: &mut dyn ContractStub, request: GetStateMetadata) -> Answer<Bytes> {
        let metadata = match self.is_private(&request.collection)? {
            true => tx.get_private_metadata(&request.collection, &request.key).await?,
            false => tx.get_metadata(&request.key).await?,
        };
        let entries = metadata.into_iter().map(|(metakey, value)| StateMetadata { metakey, value }).collect();
        Ok(encode(StateMetadataResult { entries }))
    }

    async fn put_metadata(&self, tx: &mut dyn ContractStub, request: PutStateMetadata) -> Answer<()> {
        let StateMetadata { metakey, value } = request.metadata.unwrap_or_default();
        let metadata = Metadata::from([(metakey, value)]);
        match self.is_private(&request.collection)? {
            true => tx.set_private_metadata(&request.collection, &request.key, metadata).await?,
            false => tx.set_metadata(&request.key, metadata)?,
        }
        Ok(())
    }

    async fn get_range(&mut self, tx: &mut dyn ContractStub, request: GetStateByRange) -> Answer<QueryResponse> {
        let page = page_of(request.metadata)?;
        let range = KeyRange::between(&request.start_key, &request.end_key);
        if self.is_private(&request.collection)? {
            self.queries.check_room()?;
            let id = tx.open_private_range(&request.collection, range).await?;
            return Ok(self.queries.start(tx, QuerySource::Rows, id).await?);
        }
        if let Some(QueryMetadata { page_size, bookmark }) = page {
            let Ok(page_size) = usize::try_from(page_size) else {
                return refused(format!("a page of {page_size} results is not possible"));
            };
            let range = match bookmark.is_empty() {
                true => range,
                false => KeyRange::between(&bookmark, &request.end_key),
            };
            return Ok(page_response(tx.read_page(range, page_size.min(QUERY_ROWS_MAX)).await?));
        }
        self.queries.check_room()?;
        let id = tx.open_range(range).await?;
        Ok(self.queries.start(tx, QuerySource::Rows, id).await?)
    }

    async fn get_query_result(&mut self, tx: &mut dyn ContractStub, request: GetQueryResult) -> Answer<QueryResponse> {
        if self.is_private(&request.collection)? {
            return refused("a rich query of private data is not offered by this peer");
        }
        if page_of(request.metadata)?.is_some() {
            return refused("a rich query by pages is not offered by this peer; query without pages");
        }
        self.queries.check_room()?;
        let id = tx.open_query(&request.query).await?;
        Ok(self.queries.start(tx, QuerySource::Rows, id).await?)
    }

    async fn get_history(&mut self, tx: &mut dyn ContractStub, request: GetHistoryForKey) -> Answer<QueryResponse> {
        self.queries.check_room()?;
        let id = tx.open_history(&request.key).await?;
        Ok(self.queries.start(tx, QuerySource::History, id).await?)
    }

    async fn next_batch(&mut self, tx: &mut dyn ContractStub, request: QueryStateNext) -> Answer<QueryResponse> {
        match self.queries.next(tx, &request.id).await? {
            Some(batch) => Ok(batch),
            None => refused("the query is not open"),
        }
    }
}

/// Calls another chaincode. Its name may be `name:version/channel`; the version says nothing any more.
async fn invoke(tx: &mut dyn ContractStub, payload: Bytes, tx_id: String) -> Answer<Bytes> {
    /// `ChaincodeSpec.input`.
    const INPUT: u32 = 3;
    if fields(&payload, &[INPUT])? > INPUT_FIELDS_MAX {
        return refused(format!("a chaincode takes at most {INPUT_FIELDS_MAX} arguments"));
    }
    let spec = decode::<ChaincodeSpec>(payload)?;
    let named = spec.chaincode_id.unwrap_or_default().name;
    let (name, channel) = named.split_once('/').unwrap_or((&named, ""));
    let name = name.split_once(':').map_or(name, |(name, _)| name);
    let response = tx.invoke_contract(name, spec.input.unwrap_or_default().args, channel).await?;
    let channel_id = if channel.is_empty() { tx.channel_id().as_str() } else { channel };
    let response = Response { status: response.status, message: response.message, payload: response.payload };
    // The chaincode's library takes the called chaincode's own last message.
    Ok(encode(ChaincodeMessage {
        r#type: Type::Completed.into(),
        payload: encode(response),
        txid: tx_id,
        channel_id: channel_id.to_owned(),
        ..ChaincodeMessage::default()
    }))
}

/// The page that a query asks for, if it asks for one.
fn page_of(metadata: Bytes) -> Answer<Option<QueryMetadata>> {
    let page: QueryMetadata = decode(metadata)?;
    Ok((page != QueryMetadata::default()).then_some(page))
}

fn page_response(page: BookmarkedPage) -> QueryResponse {
    let metadata = QueryResponseMetadata { fetched_records_count: page.entries.len() as i32, bookmark: page.bookmark };
    let results = page.entries.into_iter().map(|row| QueryResultBytes { result_bytes: encode_row(row) });
    // Nothing stays open, so the id names nothing.
    QueryResponse { results: results.collect(), has_more: false, id: String::new(), metadata: encode(metadata) }
}

/// The number of fields in a message, or in the messages at `path` within it. Each takes memory once the message is decoded,
/// and as little as two bytes before.
fn fields(message: &[u8], path: &[u32]) -> Answer<usize> {
    count_fields(message, path).or_else(|_| undecodable())
}

fn count_fields(mut message: &[u8], path: &[u32]) -> Result<usize, prost::DecodeError> {
    let mut count = 0;
    while message.has_remaining() {
        let (number, wire_type) = decode_key(&mut message)?;
        match path.split_first() {
            Some((first, rest)) if number == *first && wire_type == WireType::LengthDelimited => {
                let length = usize::try_from(decode_varint(&mut message)?).unwrap_or(usize::MAX);
                // If the length is wrong, the decoder refuses the message.
                let (inner, after) = message.split_at(length.min(message.len()));
                count = count_fields(inner, rest)?.saturating_add(count);
                message = after;
            }
            _ => {
                count = count.saturating_add(usize::from(path.is_empty()));
                skip_field(wire_type, number, &mut message, DecodeContext::default())?;
            }
        }
    }
    Ok(count)
}

fn decode<M: Message + Default>(payload: Bytes) -> Answer<M> {
    M::decode(payload).or_else(|_| undecodable())
}

fn undecodable<T>() -> Answer<T> {
    refused("the request cannot be decoded")
}

fn encode(message: impl Message) -> Bytes {
    message.encode_to_vec().into()
}
