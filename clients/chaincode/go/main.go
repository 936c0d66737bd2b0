// The chaincode of the client tests: assets, with Fabric's contract API. It listens for peers, or connects to one.
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"os"

	"github.com/hyperledger/fabric-chaincode-go/v2/pkg/statebased"
	"github.com/hyperledger/fabric-chaincode-go/v2/shim"
	"github.com/hyperledger/fabric-contract-api-go/v2/contractapi"
)

// Assets is the contract.
type Assets struct {
	contractapi.Contract
}

// Asset is one row.
type Asset struct {
	ID    string `json:"id"`
	Owner string `json:"owner"`
	Value int    `json:"value"`
}

// Change is one entry of an asset's history.
type Change struct {
	TxID    string `json:"txId"`
	Owner   string `json:"owner"`
	Deleted bool   `json:"deleted"`
}

// Create makes an asset, and an event.
func (*Assets) Create(ctx contractapi.TransactionContextInterface, id, owner string, value int) error {
	stub := ctx.GetStub()
	existing, err := stub.GetState(id)
	if err != nil {
		return err
	}
	if existing != nil {
		return fmt.Errorf("the asset %s exists already", id)
	}
	bytes, err := json.Marshal(Asset{id, owner, value})
	if err != nil {
		return err
	}
	if err := stub.PutState(id, bytes); err != nil {
		return err
	}
	index, err := stub.CreateCompositeKey("owner~id", []string{owner, id})
	if err != nil {
		return err
	}
	if err := stub.PutState(index, []byte{1}); err != nil {
		return err
	}
	return stub.SetEvent("created", bytes)
}

// CreateMany makes assets in one transaction, with batches of writes.
func (assets *Assets) CreateMany(ctx contractapi.TransactionContextInterface, prefix string, count int) error {
	stub := ctx.GetStub()
	stub.StartWriteBatch()
	for number := 0; number < count; number++ {
		id := fmt.Sprintf("%s%05d", prefix, number)
		bytes, err := json.Marshal(Asset{id, "many", number})
		if err != nil {
			return err
		}
		if err := stub.PutState(id, bytes); err != nil {
			return err
		}
	}
	return stub.FinishWriteBatch()
}

// Read returns an asset.
func (*Assets) Read(ctx contractapi.TransactionContextInterface, id string) (*Asset, error) {
	bytes, err := ctx.GetStub().GetState(id)
	if err != nil {
		return nil, err
	}
	if bytes == nil {
		return nil, fmt.Errorf("there is no asset %s", id)
	}
	var asset Asset
	return &asset, json.Unmarshal(bytes, &asset)
}

// ReadMany reads assets at once, and returns how many exist.
func (*Assets) ReadMany(ctx contractapi.TransactionContextInterface, ids []string) (int, error) {
	values, err := ctx.GetStub().GetMultipleStates(ids...)
	found := 0
	for _, value := range values {
		if len(value) > 0 {
			found++
		}
	}
	return found, err
}

// Transfer changes the owner.
func (assets *Assets) Transfer(ctx contractapi.TransactionContextInterface, id, owner string) error {
	asset, err := assets.Read(ctx, id)
	if err != nil {
		return err
	}
	asset.Owner = owner
	bytes, err := json.Marshal(asset)
	if err != nil {
		return err
	}
	return ctx.GetStub().PutState(id, bytes)
}

// Protect lets the asset change only with the endorsements of peers of all these organisations; without any, the
// chaincode's policy applies again.
func (*Assets) Protect(ctx contractapi.TransactionContextInterface, id string, organizations []string) error {
	if len(organizations) == 0 {
		return ctx.GetStub().SetStateValidationParameter(id, nil)
	}
	policy, err := statebased.NewStateEP(nil)
	if err != nil {
		return err
	}
	if err := policy.AddOrgs(statebased.RoleTypePeer, organizations...); err != nil {
		return err
	}
	bytes, err := policy.Policy()
	if err != nil {
		return err
	}
	return ctx.GetStub().SetStateValidationParameter(id, bytes)
}

// ProtectBadly gives the asset a policy that nobody can decode.
func (*Assets) ProtectBadly(ctx contractapi.TransactionContextInterface, id string) error {
	return ctx.GetStub().SetStateValidationParameter(id, []byte{0xff})
}

// ProtectPrivately protects a private asset.
func (*Assets) ProtectPrivately(ctx contractapi.TransactionContextInterface, collection, id string, organizations []string) error {
	policy, err := statebased.NewStateEP(nil)
	if err != nil {
		return err
	}
	if err := policy.AddOrgs(statebased.RoleTypePeer, organizations...); err != nil {
		return err
	}
	bytes, err := policy.Policy()
	if err != nil {
		return err
	}
	return ctx.GetStub().SetPrivateDataValidationParameter(collection, id, bytes)
}

// PutPrivately stores the transient value "value" in a collection.
func (*Assets) PutPrivately(ctx contractapi.TransactionContextInterface, collection, id string) error {
	transient, err := ctx.GetStub().GetTransient()
	if err != nil {
		return err
	}
	return ctx.GetStub().PutPrivateData(collection, id, transient["value"])
}

// Count counts the assets from start to end.
func (*Assets) Count(ctx contractapi.TransactionContextInterface, start, end string) (int, error) {
	rows, err := ctx.GetStub().GetStateByRange(start, end)
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	count := 0
	for rows.HasNext() {
		if _, err := rows.Next(); err != nil {
			return 0, err
		}
		count++
	}
	return count, nil
}

// Page returns the number of assets on a page, and the bookmark of the next one.
func (*Assets) Page(ctx contractapi.TransactionContextInterface, start, end string, size int32, bookmark string) (string, error) {
	rows, metadata, err := ctx.GetStub().GetStateByRangeWithPagination(start, end, size, bookmark)
	if err != nil {
		return "", err
	}
	defer rows.Close()
	return fmt.Sprintf("%d %s", metadata.FetchedRecordsCount, metadata.Bookmark), nil
}

// OwnedBy lists what an owner had when the assets were made.
func (*Assets) OwnedBy(ctx contractapi.TransactionContextInterface, owner string) ([]string, error) {
	stub := ctx.GetStub()
	rows, err := stub.GetStateByPartialCompositeKey("owner~id", []string{owner})
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	owned := []string{}
	for rows.HasNext() {
		row, err := rows.Next()
		if err != nil {
			return nil, err
		}
		_, parts, err := stub.SplitCompositeKey(row.Key)
		if err != nil {
			return nil, err
		}
		owned = append(owned, parts[1])
	}
	return owned, nil
}

// History lists the owners that an asset had, newest first.
func (*Assets) History(ctx contractapi.TransactionContextInterface, id string) ([]Change, error) {
	rows, err := ctx.GetStub().GetHistoryForKey(id)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	changes := []Change{}
	for rows.HasNext() {
		row, err := rows.Next()
		if err != nil {
			return nil, err
		}
		var asset Asset
		if len(row.Value) > 0 {
			if err := json.Unmarshal(row.Value, &asset); err != nil {
				return nil, err
			}
		}
		changes = append(changes, Change{row.TxId, asset.Owner, row.IsDelete})
	}
	return changes, nil
}

// OwnedPage returns the number of index rows of an owner on a page, and the bookmark of the next one.
func (*Assets) OwnedPage(ctx contractapi.TransactionContextInterface, owner string, size int32, bookmark string) (string, error) {
	rows, metadata, err := ctx.GetStub().GetStateByPartialCompositeKeyWithPagination("owner~id", []string{owner}, size, bookmark)
	if err != nil {
		return "", err
	}
	defer rows.Close()
	return fmt.Sprintf("%d %x", metadata.FetchedRecordsCount, metadata.Bookmark), nil
}

// Delete deletes an asset.
func (*Assets) Delete(ctx contractapi.TransactionContextInterface, id string) error {
	return ctx.GetStub().DelState(id)
}

// PutPrivate writes the value that the client sends beside the arguments.
func (*Assets) PutPrivate(ctx contractapi.TransactionContextInterface, collection, id string) error {
	transient, err := ctx.GetStub().GetTransient()
	if err != nil {
		return err
	}
	return ctx.GetStub().PutPrivateData(collection, id, transient["value"])
}

// PutPrivateMany writes rows in one batch, with one row of the world state among them, and purges another private row.
func (*Assets) PutPrivateMany(ctx contractapi.TransactionContextInterface, collection, prefix string, count int, purged string) error {
	stub := ctx.GetStub()
	stub.StartWriteBatch()
	for number := 0; number < count; number++ {
		id := fmt.Sprintf("%s%05d", prefix, number)
		if err := stub.PutPrivateData(collection, id, []byte(id)); err != nil {
			return err
		}
	}
	if err := stub.PutState(prefix, []byte(purged)); err != nil {
		return err
	}
	if err := stub.PurgePrivateData(collection, purged); err != nil {
		return err
	}
	return stub.FinishWriteBatch()
}

// GetPrivate returns a private value; empty if there is none.
func (*Assets) GetPrivate(ctx contractapi.TransactionContextInterface, collection, id string) (string, error) {
	value, err := ctx.GetStub().GetPrivateData(collection, id)
	return string(value), err
}

// GetPrivateHash returns the hash of a private value in hexadecimal; empty if there is none.
func (*Assets) GetPrivateHash(ctx contractapi.TransactionContextInterface, collection, id string) (string, error) {
	hash, err := ctx.GetStub().GetPrivateDataHash(collection, id)
	return fmt.Sprintf("%x", hash), err
}

// GetPrivateMany reads private values at once, and returns how many exist.
func (*Assets) GetPrivateMany(ctx contractapi.TransactionContextInterface, collection string, ids []string) (int, error) {
	values, err := ctx.GetStub().GetMultiplePrivateData(collection, ids...)
	found := 0
	for _, value := range values {
		if len(value) > 0 {
			found++
		}
	}
	return found, err
}

// CountPrivate counts the private rows from start to end.
func (*Assets) CountPrivate(ctx contractapi.TransactionContextInterface, collection, start, end string) (int, error) {
	rows, err := ctx.GetStub().GetPrivateDataByRange(collection, start, end)
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	count := 0
	for rows.HasNext() {
		if _, err := rows.Next(); err != nil {
			return 0, err
		}
		count++
	}
	return count, nil
}

// DeletePrivate deletes a private value.
func (*Assets) DeletePrivate(ctx contractapi.TransactionContextInterface, collection, id string) error {
	return ctx.GetStub().DelPrivateData(collection, id)
}

// PurgePrivate deletes a private value and all that it was before.
func (*Assets) PurgePrivate(ctx contractapi.TransactionContextInterface, collection, id string) error {
	return ctx.GetStub().PurgePrivateData(collection, id)
}

// Call calls another chaincode and returns its answer.
func (*Assets) Call(ctx contractapi.TransactionContextInterface, chaincode, function, argument string) (string, error) {
	response := ctx.GetStub().InvokeChaincode(chaincode, [][]byte{[]byte(function), []byte(argument)}, "")
	if response.Status >= 400 {
		return "", fmt.Errorf("%s answered %d: %s", chaincode, response.Status, response.Message)
	}
	return string(response.Payload), nil
}

// Who returns the client's organisation, which the chaincode reads from the signed proposal.
func (*Assets) Who(ctx contractapi.TransactionContextInterface) (string, error) {
	return ctx.GetClientIdentity().GetMSPID()
}

// Crash ends the process in the middle of a call.
func (*Assets) Crash(contractapi.TransactionContextInterface) error {
	os.Exit(3)
	return nil
}

// Hang writes an asset in the middle of a call that never ends, unless the file is there, which it makes.
func (*Assets) Hang(ctx contractapi.TransactionContextInterface, id, file string) error {
	_, missing := os.Stat(file)
	if err := ctx.GetStub().PutState(id, []byte("{}")); err != nil || missing == nil {
		return err
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		return err
	}
	select {}
}

// TLS with the files that the environment names, for peers that have a certificate of their own.
func tls() shim.TLSProperties {
	if os.Getenv("CHAINCODE_TLS_KEY") == "" {
		return shim.TLSProperties{Disabled: true}
	}
	read := func(variable string) []byte {
		bytes, err := os.ReadFile(os.Getenv(variable))
		if err != nil {
			log.Fatal(err)
		}
		return bytes
	}
	return shim.TLSProperties{
		Key:           read("CHAINCODE_TLS_KEY"),
		Cert:          read("CHAINCODE_TLS_CERT"),
		ClientCACerts: read("CHAINCODE_CLIENT_CA_CERT"),
	}
}

func main() {
	chaincode, err := contractapi.NewChaincode(&Assets{})
	if err != nil {
		log.Fatal(err)
	}
	if os.Getenv("CHAINCODE_SERVER_ADDRESS") == "" {
		// The flag -peer.address names the peer.
		log.Fatal(shim.Start(chaincode))
	}
	server := shim.ChaincodeServer{
		CCID:     os.Getenv("CHAINCODE_ID"),
		Address:  os.Getenv("CHAINCODE_SERVER_ADDRESS"),
		CC:       chaincode,
		TLSProps: tls(),
	}
	log.Fatal(server.Start())
}
