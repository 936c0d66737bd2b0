package clients

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hyperledger/fabric-admin-sdk/pkg/chaincode"
	"github.com/hyperledger/fabric-admin-sdk/pkg/identity"
	"google.golang.org/grpc"
)

// The gateways of a network, in the order of its organisations.
func gateways(t *testing.T, directory string) []string {
	t.Helper()
	bytes, err := os.ReadFile(filepath.Join(directory, "endpoints.json"))
	if err != nil {
		t.Fatal(err)
	}
	var endpoints struct{ Gateways []struct{ Address string } }
	if err := json.Unmarshal(bytes, &endpoints); err != nil {
		t.Fatal(err)
	}
	addresses := make([]string, 0, len(endpoints.Gateways))
	for _, gateway := range endpoints.Gateways {
		addresses = append(addresses, gateway.Address)
	}
	return addresses
}

// The administrator of an organisation, counted from 1, at the gateway of that organisation.
func administrator(t *testing.T, directory, address string, number int) *chaincode.Gateway {
	t.Helper()
	return chaincode.NewGateway(administratorAt(t, directory, address, number))
}

func administratorAt(t *testing.T, directory, address string, number int) (*grpc.ClientConn, identity.SigningIdentity) {
	t.Helper()
	domain := fmt.Sprintf("org%d.example.com", number)
	organization := filepath.Join(directory, "organizations", "peerOrganizations", domain)
	peer := "peer0." + domain
	connection := connect(t, address, filepath.Join(organization, "peers", peer), peer)
	signer := signer(t, fmt.Sprintf("Org%dMSP", number), filepath.Join(organization, "users", "Admin@"+domain, "msp"))
	id, err := identity.NewPrivateKeySigningIdentity(signer.MSPID, signer.Certificate, signer.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	return connection, id
}

// Repeats what fails until it succeeds.
func eventually(t *testing.T, try func() error) {
	t.Helper()
	for deadline := time.Now().Add(followsWithin); ; time.Sleep(50 * time.Millisecond) {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

func TestLifecycleOfFabricsAdminSDK(t *testing.T) {
	network := start(t)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	addresses := gateways(t, network.directory)
	admins := make([]*chaincode.Gateway, 0, len(addresses))
	peers := make([]string, 0, len(addresses))
	for index, address := range addresses {
		admins = append(admins, administrator(t, network.directory, address, index+1))
		peers = append(peers, fmt.Sprintf("'Org%dMSP.peer'", index+1))
	}
	policy, err := chaincode.NewApplicationPolicy("AND("+strings.Join(peers, ", ")+")", "")
	if err != nil {
		t.Fatal(err)
	}
	definition := &chaincode.Definition{
		ChannelName:       "mychannel",
		Name:              "basic",
		Version:           "2.0",
		Sequence:          1,
		ApplicationPolicy: policy,
	}
	if err := admins[0].Commit(ctx, definition); err == nil {
		t.Fatal("a definition that nobody has approved was committed")
	}
	if err := admins[0].Approve(ctx, definition); err != nil {
		t.Fatal(err)
	}
	readiness, err := admins[0].CheckCommitReadiness(ctx, definition)
	if err != nil {
		t.Fatal(err)
	}
	if !readiness.Approvals["Org1MSP"] || readiness.Approvals["Org2MSP"] {
		t.Fatalf("after one approval the readiness is %v", readiness.Approvals)
	}
	for _, admin := range admins[1:] {
		if err := admin.Approve(ctx, definition); err != nil {
			t.Fatal(err)
		}
	}
	// Each approval is committed at the peer of its organisation, and reaches the others later.
	for _, admin := range admins {
		eventually(t, func() error {
			readiness, err := admin.CheckCommitReadiness(ctx, definition)
			if err != nil {
				return err
			}
			for organization, approved := range readiness.Approvals {
				if !approved {
					return fmt.Errorf("%s has not approved", organization)
				}
			}
			return nil
		})
	}
	if err := admins[0].Commit(ctx, definition); err != nil {
		t.Fatal(err)
	}
	committed, err := admins[0].QueryCommittedWithName(ctx, "mychannel", "basic")
	if err != nil {
		t.Fatal(err)
	}
	if committed.Sequence != 1 || committed.Version != "2.0" || len(committed.Approvals) != len(admins) {
		t.Fatalf("committed %v", committed)
	}
	all, err := admins[0].QueryCommitted(ctx, "mychannel")
	if err != nil || len(all.ChaincodeDefinitions) < 2 {
		t.Fatalf("all definitions: %v, %v", all, err)
	}

	// The gateway asks the endorsers that the new policy needs, once it knows of it.
	contract := network.contract(t)
	eventually(t, func() error {
		_, err := contract.SubmitTransaction("CreateAsset", "asset-defined", "blue", "5", "Tomoko", "300")
		return err
	})
}
