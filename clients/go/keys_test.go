package clients

import (
	"errors"
	"fmt"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/hyperledger/fabric-gateway/pkg/client"
	"github.com/hyperledger/fabric-protos-go-apiv2/common"
	"github.com/hyperledger/fabric-protos-go-apiv2/gateway"
	"github.com/hyperledger/fabric-protos-go-apiv2/msp"
	"github.com/hyperledger/fabric-protos-go-apiv2/peer"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

func decode(t *testing.T, bytes []byte, into proto.Message) {
	t.Helper()
	if err := proto.Unmarshal(bytes, into); err != nil {
		t.Fatal(err)
	}
}

// The organisations that endorsed a transaction.
func endorsers(t *testing.T, transaction *client.Transaction) string {
	t.Helper()
	bytes, err := transaction.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	var prepared gateway.PreparedTransaction
	var payload common.Payload
	var inner peer.Transaction
	var action peer.ChaincodeActionPayload
	decode(t, bytes, &prepared)
	decode(t, prepared.GetEnvelope().GetPayload(), &payload)
	decode(t, payload.GetData(), &inner)
	decode(t, inner.GetActions()[0].GetPayload(), &action)
	var names []string
	for _, endorsement := range action.GetAction().GetEndorsements() {
		var identity msp.SerializedIdentity
		decode(t, endorsement.GetEndorser(), &identity)
		names = append(names, identity.GetMspid())
	}
	sort.Strings(names)
	return strings.Join(names, " ")
}

// Submits a transaction without naming organisations; the gateway finds out who must endorse it. A client is told of a commit
// by its own peer. Others may not have the block yet, and endorse from an older state; then the transaction is repeated.
func endorsedBy(t *testing.T, contract *client.Contract, expected, function string, options ...client.ProposalOption) {
	t.Helper()
	for deadline := time.Now().Add(followsWithin); ; {
		stale := submitOnce(t, contract, expected, function, options...)
		if stale == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %v", function, stale)
		}
	}
}

// The error is one that an older state may have caused; any other ends the test.
func submitOnce(t *testing.T, contract *client.Contract, expected, function string, options ...client.ProposalOption) error {
	t.Helper()
	proposal, err := contract.NewProposal(function, options...)
	if err != nil {
		t.Fatal(err)
	}
	transaction, err := proposal.Endorse()
	if err != nil {
		failed := status.Convert(err)
		if failed.Code() == codes.Aborted {
			return fmt.Errorf("%w: %v", err, failed.Details())
		}
		t.Fatalf("%s: %v %v", function, err, failed.Details())
	}
	expect(t, "the endorsers of "+function, endorsers(t, transaction), expected)
	commit, err := transaction.Submit()
	if err != nil {
		t.Fatal(err)
	}
	found, err := commit.Status()
	if err != nil {
		t.Fatal(err)
	}
	if found.Code == peer.TxValidationCode_MVCC_READ_CONFLICT {
		return errors.New("it was endorsed from an older state")
	}
	if found.Code != peer.TxValidationCode_VALID {
		t.Fatalf("%s: %v", function, found)
	}
	return nil
}

func TestPoliciesOfKeys(t *testing.T) {
	address := freeAddress(t)
	startChaincode(t, "assets", address)
	const all = `["Org1MSP","Org2MSP","Org3MSP"]`
	sections := fmt.Sprintf("[contracts]\nassets = { policy = \"OR('Org1MSP.peer', 'Org2MSP.peer')\" }\n"+
		"[[chaincodes]]\nname = \"assets\"\naddress = %q\n", address)
	contract := startWith(t, sections).channel(t).GetContract("assets")
	arguments := func(arguments ...string) client.ProposalOption { return client.WithArguments(arguments...) }

	endorsedBy(t, contract, "Org1MSP", "Create", arguments("car", "Ada", "7"))
	endorsedBy(t, contract, "Org1MSP", "Create", arguments("boat", "Ada", "9"))
	endorsedBy(t, contract, "Org1MSP", "Protect", arguments("car", all))
	endorsedBy(t, contract, "Org1MSP Org2MSP Org3MSP", "Transfer", arguments("car", "Bob"))
	expect(t, "Read", evaluate(t, contract, "Read", "car"), `{"id":"car","owner":"Bob","value":7}`)
	// A key without a policy still has that of the chaincode.
	endorsedBy(t, contract, "Org1MSP", "Transfer", arguments("boat", "Bob"))
	// The key's policy alone counts, although the chaincode's does not name the organisation.
	endorsedBy(t, contract, "Org1MSP", "Protect", arguments("boat", `["Org3MSP"]`))
	endorsedBy(t, contract, "Org3MSP", "Transfer", arguments("boat", "Cem"))
	// Who may change the policy is what the policy says.
	endorsedBy(t, contract, "Org1MSP Org2MSP Org3MSP", "Protect", arguments("car", "[]"))
	endorsedBy(t, contract, "Org1MSP", "Transfer", arguments("car", "Cem"))

	secret := client.WithTransient(map[string][]byte{"value": []byte("secret")})
	const collection = "_implicit_org_Org1MSP"
	endorsedBy(t, contract, "Org1MSP", "PutPrivately", arguments(collection, "plan"), secret)
	endorsedBy(t, contract, "Org1MSP", "ProtectPrivately", arguments(collection, "plan", all))
	// The key's policy names organisations that must not see its value. As in Fabric, the client decides to show it to them.
	if _, err := contract.Submit("PutPrivately", arguments(collection, "plan"), secret); status.Code(err) != codes.FailedPrecondition ||
		!strings.Contains(err.Error(), "not in the distribution policy") {
		t.Fatalf("a value for strangers to its collection gave %v", err)
	}
	named := client.WithEndorsingOrganizations("Org1MSP", "Org2MSP", "Org3MSP")
	endorsedBy(t, contract, "Org1MSP Org2MSP Org3MSP", "PutPrivately", arguments(collection, "plan"), secret, named)

	// Nobody can satisfy a policy that cannot be decoded, so nobody endorses.
	endorsedBy(t, contract, "Org3MSP", "ProtectBadly", arguments("boat"))
	_, err := contract.SubmitTransaction("Transfer", "boat", "Ada")
	if found := status.Convert(err); found.Code() != codes.Aborted || len(found.Details()) == 0 ||
		!strings.Contains(found.Details()[0].(*gateway.ErrorDetail).GetMessage(), "error in simulation") {
		t.Fatalf("a transfer under a broken policy gave %v %v", err, found.Details())
	}
}
