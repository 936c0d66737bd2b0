//! The metrics of this crate.

base::events! {
    /// Chaincodes that are connected now.
    gauge ChaincodesConnected("heddle_contract_chaincodes_connected");
    /// Calls that run in chaincodes outside of this process now.
    gauge ChaincodeCalls("heddle_contract_chaincode_calls");
    /// Calls that ended before the chaincode had completed them: a time limit, a client that went, a lost connection.
    counter ChaincodeCallsAbandoned("heddle_contract_chaincode_calls_abandoned_total");
    /// Messages of chaincodes that were dropped: of transactions that do not run, or second requests while a first one runs.
    counter ChaincodeMessagesIgnored("heddle_contract_chaincode_messages_ignored_total");
    /// Connections to chaincodes that broke or were refused.
    counter ChaincodeConnectionsFailed("heddle_contract_chaincode_connections_failed_total");
}
