package clients

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hyperledger/fabric-config/configtx"
	"github.com/hyperledger/fabric-gateway/pkg/client"
	"github.com/hyperledger/fabric-gateway/pkg/identity"
	"github.com/hyperledger/fabric-protos-go-apiv2/common"
	"github.com/hyperledger/fabric-protos-go-apiv2/orderer"
	"google.golang.org/protobuf/proto"
)

// How long a committed configuration may take to reach a peer.
const followsWithin = 30 * time.Second

// The identity in an MSP folder, as Fabric's library for configurations signs with it.
func signer(t *testing.T, mspID, folder string) configtx.SigningIdentity {
	t.Helper()
	certificate, err := identity.CertificateFromPEM(only(t, filepath.Join(folder, "signcerts")))
	if err != nil {
		t.Fatal(err)
	}
	key, err := identity.PrivateKeyFromPEM(only(t, filepath.Join(folder, "keystore")))
	if err != nil {
		t.Fatal(err)
	}
	return configtx.SigningIdentity{Certificate: certificate, PrivateKey: key, MSPID: mspID}
}

// The channel's configuration, as the peer has it in force.
func configuration(t *testing.T, channel *client.Network) *common.Config {
	t.Helper()
	bytes, err := channel.GetContract("cscc").EvaluateTransaction("GetConfigBlock", "mychannel")
	if err != nil {
		t.Fatal(err)
	}
	block, envelope := &common.Block{}, &common.Envelope{}
	payload, content := &common.Payload{}, &common.ConfigEnvelope{}
	if err := proto.Unmarshal(bytes, block); err != nil {
		t.Fatal(err)
	}
	if err := proto.Unmarshal(block.Data.Data[0], envelope); err != nil {
		t.Fatal(err)
	}
	if err := proto.Unmarshal(envelope.Payload, payload); err != nil {
		t.Fatal(err)
	}
	if err := proto.Unmarshal(payload.Data, content); err != nil {
		t.Fatal(err)
	}
	return content.Config
}

func broadcast(t *testing.T, to orderer.AtomicBroadcastClient, envelope *common.Envelope) *orderer.BroadcastResponse {
	t.Helper()
	stream, err := to.Broadcast(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(envelope); err != nil {
		t.Fatal(err)
	}
	answer, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	_ = stream.CloseSend()
	return answer
}

// The administrator of a peer organisation.
func (network network) admin(t *testing.T, number int) configtx.SigningIdentity {
	t.Helper()
	domain := fmt.Sprintf("org%d.example.com", number)
	organization := filepath.Join(network.directory, "organizations", "peerOrganizations", domain)
	return signer(t, fmt.Sprintf("Org%dMSP", number), filepath.Join(organization, "users", "Admin@"+domain, "msp"))
}

func (network network) broadcaster(t *testing.T) orderer.AtomicBroadcastClient {
	t.Helper()
	const name = "orderer.example.com"
	orderers := filepath.Join(network.directory, "organizations", "ordererOrganizations", "example.com", "orderers")
	return orderer.NewAtomicBroadcastClient(connect(t, network.orderer, filepath.Join(orderers, name), name))
}

// An update of the configuration, signed by these; the first of them sends it.
func signedUpdate(t *testing.T, update []byte, by ...configtx.SigningIdentity) *common.Envelope {
	t.Helper()
	var signatures []*common.ConfigSignature
	for _, signer := range by {
		signature, err := signer.CreateConfigSignature(update)
		if err != nil {
			t.Fatal(err)
		}
		signatures = append(signatures, signature)
	}
	envelope, err := configtx.NewEnvelope(update, signatures...)
	if err != nil {
		t.Fatal(err)
	}
	if err := by[0].SignEnvelope(envelope); err != nil {
		t.Fatal(err)
	}
	return envelope
}

func TestConfigurationUpdateOfFabricsLibrary(t *testing.T) {
	network := start(t)
	channel := network.channel(t)
	to := network.broadcaster(t)
	orderers := filepath.Join(network.directory, "organizations", "ordererOrganizations", "example.com")
	admin := signer(t, "OrdererMSP", filepath.Join(orderers, "users", "Admin@example.com", "msp"))
	stranger := network.admin(t, 1)

	before := configuration(t, channel)
	changed := configtx.New(before)
	if err := changed.Orderer().BatchSize().SetMaxMessageCount(7); err != nil {
		t.Fatal(err)
	}
	update, err := changed.ComputeMarshaledUpdate("mychannel")
	if err != nil {
		t.Fatal(err)
	}
	refused := broadcast(t, to, signedUpdate(t, update, stranger))
	if refused.Status != common.Status_BAD_REQUEST || !strings.Contains(refused.Info, "/Channel/Orderer/BatchSize") {
		t.Fatalf("a change by an administrator of another organisation gave %v", refused)
	}
	if taken := broadcast(t, to, signedUpdate(t, update, admin)); taken.Status != common.Status_SUCCESS {
		t.Fatalf("a change by the orderers' administrator gave %v", taken)
	}
	for deadline := time.Now().Add(followsWithin); ; time.Sleep(20 * time.Millisecond) {
		now := configuration(t, channel)
		if now.Sequence == before.Sequence+1 {
			read := configtx.New(now)
			if orderer, err := read.Orderer().Configuration(); err != nil || orderer.BatchSize.MaxMessageCount != 7 {
				t.Fatalf("the new configuration has %v, %v", orderer.BatchSize, err)
			}
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the peer is still at configuration %d", now.Sequence)
		}
	}
}

func TestEventsEndOnceTheirListenerMayNotListen(t *testing.T) {
	network := start(t)
	channel := network.channel(t)
	ctx, cancel := context.WithTimeout(context.Background(), followsWithin)
	defer cancel()
	events, err := channel.ChaincodeEvents(ctx, "basic")
	if err != nil {
		t.Fatal(err)
	}
	changed := configtx.New(configuration(t, channel))
	const admins = "/Channel/Application/Admins"
	if err := changed.Application().SetACLs(map[string]string{"gateway/ChaincodeEvents": admins}); err != nil {
		t.Fatal(err)
	}
	update, err := changed.ComputeMarshaledUpdate("mychannel")
	if err != nil {
		t.Fatal(err)
	}
	envelope := signedUpdate(t, update, network.admin(t, 1), network.admin(t, 2))
	if taken := broadcast(t, network.broadcaster(t), envelope); taken.Status != common.Status_SUCCESS {
		t.Fatalf("a change by two administrators gave %v", taken)
	}
	// The library closes its channel when the stream ends.
	if event, isOpen := <-events; isOpen || ctx.Err() != nil {
		t.Fatalf("the stream has not ended: %v, %v", event, ctx.Err())
	}
}
