package clients

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hyperledger/fabric-admin-sdk/pkg/chaincode"
)

// A peer, as Fabric's command `discover` prints it.
type discoveredPeer struct {
	MSPID        string
	LedgerHeight int
	Endpoint     string
	Identity     string
	Chaincodes   []string
}

// What `discover endorsers` prints of a chaincode.
type endorsementDescriptor struct {
	Chaincode         string
	EndorsersByGroups map[string][]discoveredPeer
	Layouts           []struct {
		QuantitiesByGroup map[string]int `json:"quantities_by_group"`
	}
}

// The organisations of each layout, each layout once.
func (d endorsementDescriptor) choices() map[string]bool {
	choices := map[string]bool{}
	for _, layout := range d.Layouts {
		var names []string
		for number := 1; number <= 3; number++ {
			for group, quantity := range layout.QuantitiesByGroup {
				for _, peer := range d.EndorsersByGroups[group] {
					if peer.MSPID == fmt.Sprintf("Org%dMSP", number) && quantity == 1 {
						names = append(names, peer.MSPID)
					}
				}
			}
		}
		choices[strings.Join(names, "+")] = true
	}
	return choices
}

// Runs `discover` as a user of an organisation at the gateway of that organisation.
func (c commandLine) discover(number int, user, query string, arguments ...string) (string, error) {
	domain := fmt.Sprintf("org%d.example.com", number)
	msp := filepath.Join(c.organization(number), "users", user+"@"+domain, "msp")
	certificates, _ := filepath.Glob(filepath.Join(msp, "signcerts", "*"))
	keys, _ := filepath.Glob(filepath.Join(msp, "keystore", "*"))
	flags := []string{
		"--MSP", fmt.Sprintf("Org%dMSP", number), "--userCert", certificates[0], "--userKey", keys[0],
		"--peerTLSCA", c.rootOf(number), query, "--server", c.gateways[number-1],
	}
	command := exec.Command(filepath.Join(c.programs, "discover"), append(flags, arguments...)...)
	command.Env = append(os.Environ(), "FABRIC_LOGGING_SPEC=error")
	var failure strings.Builder
	command.Stderr = &failure
	printed, err := command.Output()
	if err != nil {
		return failure.String(), err
	}
	return string(printed), nil
}

func (c commandLine) discovered(t *testing.T, into any, number int, user, query string, arguments ...string) {
	t.Helper()
	printed, err := c.discover(number, user, query, arguments...)
	if err == nil {
		err = json.Unmarshal([]byte(printed), into)
	}
	if err != nil {
		t.Fatalf("discover %s: %v\n%s", query, err, printed)
	}
}

func TestFabricsDiscoverCommand(t *testing.T) {
	network := start(t)
	peer := newCommandLine(t, network)
	if _, err := os.Stat(filepath.Join(peer.programs, "discover")); err != nil {
		t.Skipf("%s has no discover", peer.programs)
	}
	on := []string{"--channel", "mychannel"}

	// The peers: each at its gateway, with the contracts that it can run.
	var peers []discoveredPeer
	peer.discovered(t, &peers, 1, "User1", "peers", on...)
	addresses := map[string]string{}
	for _, found := range peers {
		addresses[found.MSPID] = found.Endpoint
		contains(t, "chaincodes", strings.Join(found.Chaincodes, " ")+" ", "basic ")
		contains(t, "the certificate", found.Identity, "BEGIN CERTIFICATE")
		if found.LedgerHeight < 1 {
			t.Fatalf("height %d of %s", found.LedgerHeight, found.MSPID)
		}
	}
	for index, gateway := range peer.gateways {
		port := gateway[strings.LastIndex(gateway, ":"):]
		expect(t, "the address", addresses[fmt.Sprintf("Org%dMSP", index+1)], fmt.Sprintf("peer0.org%d.example.com%s", index+1, port))
	}

	// Without a channel only administrators may ask.
	peer.discovered(t, &peers, 1, "Admin", "peers")
	expect(t, "local peers", fmt.Sprint(len(peers)), "3")
	printed, err := peer.discover(1, "User1", "peers")
	if err == nil {
		t.Fatalf("a client was told the peers outside of a channel: %s", printed)
	}
	contains(t, "a client's local query", printed, "access denied")
	printed, _ = peer.discover(1, "User1", "peers", "--channel", "nochannel")
	contains(t, "an unknown channel", printed, "access denied")

	var config struct {
		MSPs     map[string]any
		Orderers map[string]struct{ Endpoint []struct{ Host string } }
	}
	peer.discovered(t, &config, 2, "User1", "config", on...)
	expect(t, "organisations", fmt.Sprint(len(config.MSPs)), "4")
	expect(t, "the orderer", config.Orderers["OrdererMSP"].Endpoint[0].Host, "orderer.example.com")

	endorsers := func(arguments ...string) endorsementDescriptor {
		t.Helper()
		var found []endorsementDescriptor
		peer.discovered(t, &found, 1, "User1", "endorsers", append(on, arguments...)...)
		return found[0]
	}
	expect(t, "any organisation", fmt.Sprint(endorsers("--chaincode", "basic").choices()), "map[Org1MSP:true Org2MSP:true Org3MSP:true]")
	printed, err = peer.discover(1, "User1", "endorsers", append(on, "--chaincode", "absent")...)
	if err == nil {
		t.Fatalf("an unknown chaincode has endorsers: %s", printed)
	}
	contains(t, "an unknown chaincode", printed, "failed constructing descriptor")

	discoverCollections(t, network, peer, endorsers)
}

// A chaincode that two of three organisations have, with a collection of theirs and one of a single organisation.
func discoverCollections(t *testing.T, network network, peer commandLine, endorsers func(...string) endorsementDescriptor) {
	t.Helper()
	address, folder := freeAddress(t), t.TempDir()
	err := chaincode.PackageCCAAS(chaincode.Connection{Address: address, DialTimeout: "10s"},
		chaincode.Metadata{Type: "ccaas", Label: "assets_1.0"}, folder, "assets.tar.gz")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(folder, "assets.tar.gz")
	id := strings.TrimSpace(peer.run(t, 1, "lifecycle", "chaincode", "calculatepackageid", file))
	collections := filepath.Join(folder, "collections.json")
	text := `[{"name": "pair", "policy": "OR('Org1MSP.member', 'Org2MSP.member')", "requiredPeerCount": 0, "maxPeerCount": 1, "blockToLive": 0},
		{"name": "own", "policy": "OR('Org2MSP.member')", "requiredPeerCount": 0, "maxPeerCount": 0, "blockToLive": 0,
		 "endorsementPolicy": {"signaturePolicy": "OR('Org1MSP.peer', 'Org2MSP.peer')"}}]`
	if err := os.WriteFile(collections, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	definition := []string{"-C", "mychannel", "-n", "assets", "-v", "1.0", "--sequence", "1", "--collections-config", collections,
		"--signature-policy", "OutOf(2, 'Org1MSP.peer', 'Org2MSP.peer', 'Org3MSP.peer')"}
	with := func(name string, more ...[]string) []string {
		arguments := []string{"lifecycle", "chaincode", name}
		for _, some := range append(more, definition) {
			arguments = append(arguments, some...)
		}
		return arguments
	}
	for number := 1; number <= 3; number++ {
		source := []string{}
		if number < 3 {
			peer.run(t, number, "lifecycle", "chaincode", "install", file)
			source = []string{"--package-id", id}
		}
		peer.run(t, number, with("approveformyorg", peer.ordering(), source)...)
	}
	eventually(t, func() error {
		printed, err := peer.try(1, with("commit", peer.ordering(), peer.endorsing(1, 2, 3))...)
		if err != nil {
			return fmt.Errorf("%w: %s", err, printed)
		}
		return nil
	})
	// The gateway may have asked the peers a moment ago.
	eventually(t, func() error {
		printed, err := peer.discover(1, "User1", "endorsers", "--channel", "mychannel", "--chaincode", "assets")
		if err != nil {
			return fmt.Errorf("%w: %s", err, printed)
		}
		return nil
	})
	// Organisation 3 has approved the definition without the package.
	eventually(t, func() error {
		if found := fmt.Sprint(endorsers("--chaincode", "assets").choices()); found != "map[Org1MSP+Org2MSP:true]" {
			return fmt.Errorf("the chaincode: %s", found)
		}
		return nil
	})
	choices := func(arguments ...string) string {
		return fmt.Sprint(endorsers(append([]string{"--chaincode", "assets"}, arguments...)...).choices())
	}
	expect(t, "a collection of both", choices("--collection", "assets:pair"), "map[Org1MSP+Org2MSP:true]")
	expect(t, "a collection of one", choices("--collection", "assets:own"), "map[Org2MSP:true]")
	expect(t, "written, not read", choices("--collection", "assets:own", "--noPrivateReads", "assets"), "map[Org1MSP:true Org2MSP:true]")
	printed, err := peer.discover(1, "User1", "endorsers", "--channel", "mychannel", "--chaincode", "assets", "--collection", "assets:none")
	if err == nil {
		t.Fatalf("an unknown collection has endorsers: %s", printed)
	}
	both := fmt.Sprint(endorsers("--chaincode", "assets", "--chaincode", "basic").choices())
	expect(t, "a call across chaincodes", both, "map[Org1MSP+Org2MSP:true]")
}
