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

// The variable that names the folder with Fabric's programs `peer` and `configtxlator`.
const fabricPrograms = "FABRIC_BIN"

// Fabric's command line `peer`, as the administrator of an organisation runs it.
type commandLine struct {
	network  network
	programs string
	config   string
	gateways []string
}

func newCommandLine(t *testing.T, network network) commandLine {
	t.Helper()
	programs := os.Getenv(fabricPrograms)
	if programs == "" {
		t.Skipf("%s is not set to the folder of Fabric's programs", fabricPrograms)
	}
	config := t.TempDir()
	if err := os.WriteFile(filepath.Join(config, "core.yaml"), []byte("peer:\n  BCCSP:\n    Default: SW\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return commandLine{network, programs, config, gateways(t, network.directory)}
}

func (c commandLine) organization(number int) string {
	return filepath.Join(c.network.directory, "organizations", "peerOrganizations", fmt.Sprintf("org%d.example.com", number))
}

func (c commandLine) rootOf(number int) string {
	return filepath.Join(c.organization(number), "peers", fmt.Sprintf("peer0.org%d.example.com", number), "tls", "ca.crt")
}

// Runs `peer` as an administrator; an organisation numbered 0 is that of the orderers.
func (c commandLine) try(number int, arguments ...string) (string, error) {
	mspID, folder, gateway := fmt.Sprintf("Org%dMSP", number), c.organization(number), number
	user := fmt.Sprintf("Admin@org%d.example.com", number)
	if number == 0 {
		mspID, folder, user, gateway = "OrdererMSP", c.orderers(), "Admin@example.com", 1
	}
	command := exec.Command(filepath.Join(c.programs, "peer"), arguments...)
	command.Env = append(os.Environ(),
		"FABRIC_CFG_PATH="+c.config, "FABRIC_LOGGING_SPEC=error", "CORE_PEER_TLS_ENABLED=true",
		"CORE_PEER_LOCALMSPID="+mspID, "CORE_PEER_MSPCONFIGPATH="+filepath.Join(folder, "users", user, "msp"),
		"CORE_PEER_ADDRESS="+c.gateways[gateway-1], "CORE_PEER_TLS_ROOTCERT_FILE="+c.rootOf(gateway))
	printed, err := command.CombinedOutput()
	return string(printed), err
}

func (c commandLine) run(t *testing.T, number int, arguments ...string) string {
	t.Helper()
	printed, err := c.try(number, arguments...)
	if err != nil {
		t.Fatalf("peer %s: %v\n%s", strings.Join(arguments, " "), err, printed)
	}
	return printed
}

func (c commandLine) orderers() string {
	return filepath.Join(c.network.directory, "organizations", "ordererOrganizations", "example.com")
}

// Flags that name the orderer.
func (c commandLine) ordering() []string {
	return []string{"-o", c.network.orderer, "--tls", "--cafile", filepath.Join(c.orderers(), "tlsca", "tlsca.example.com-cert.pem")}
}

// Flags that name the peers of organisations.
func (c commandLine) endorsing(numbers ...int) []string {
	var flags []string
	for _, number := range numbers {
		flags = append(flags, "--peerAddresses", c.gateways[number-1], "--tlsRootCertFiles", c.rootOf(number))
	}
	return flags
}

func contains(t *testing.T, what, text, part string) {
	t.Helper()
	if !strings.Contains(text, part) {
		t.Fatalf("%s: %q lacks %q", what, text, part)
	}
}

// From a package to an upgrade.
func TestLifecycleOfFabricsPeerCommand(t *testing.T) {
	network := start(t)
	peer := newCommandLine(t, network)
	address, folder := freeAddress(t), t.TempDir()
	err := chaincode.PackageCCAAS(chaincode.Connection{Address: address, DialTimeout: "10s"},
		chaincode.Metadata{Type: "ccaas", Label: "assets_1.0"}, folder, "assets.tar.gz")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(folder, "assets.tar.gz")
	id := strings.TrimSpace(peer.run(t, 1, "lifecycle", "chaincode", "calculatepackageid", file))
	startChaincode(t, id, address)
	collections := filepath.Join(folder, "collections.json")
	text := `[{"name": "pair", "policy": "OR('Org1MSP.member', 'Org2MSP.member')", "requiredPeerCount": 0, "maxPeerCount": 1,
		"blockToLive": 0, "memberOnlyRead": true, "memberOnlyWrite": true}]`
	if err := os.WriteFile(collections, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	on := []string{"-C", "mychannel", "-n", "assets"}
	lifecycle := func(number int, function string, flags ...[]string) string {
		t.Helper()
		arguments := []string{"lifecycle", "chaincode", function}
		for _, some := range flags {
			arguments = append(arguments, some...)
		}
		return peer.run(t, number, arguments...)
	}
	commit := func(number int, definition []string) {
		t.Helper()
		arguments := append([]string{"lifecycle", "chaincode", "commit"}, definition...)
		arguments = append(append(arguments, peer.ordering()...), peer.endorsing(1, 2)...)
		// An endorser may lag behind the newest approval.
		eventually(t, func() error {
			printed, err := peer.try(number, arguments...)
			if err != nil {
				return fmt.Errorf("%w: %s", err, printed)
			}
			return nil
		})
	}
	policy := []string{"--signature-policy", "AND('Org1MSP.peer', 'Org2MSP.peer')", "--collections-config", collections}
	first := append(append([]string{"-v", "1.0", "--sequence", "1", "--init-required"}, policy...), on...)
	second := append(append([]string{"-v", "2.0", "--sequence", "2"}, policy...), on...)
	source := []string{"--package-id", id}

	for number := 1; number <= 2; number++ {
		lifecycle(number, "install", []string{file})
		contains(t, "installed", lifecycle(number, "queryinstalled"), id)
	}
	if _, err := peer.try(1, "lifecycle", "chaincode", "install", file); err == nil {
		t.Fatal("a package was installed twice")
	}
	lifecycle(1, "getinstalledpackage", source, []string{"--output-directory", t.TempDir()})
	lifecycle(1, "approveformyorg", peer.ordering(), source, first)
	ready := lifecycle(1, "checkcommitreadiness", first)
	contains(t, "after one approval", ready, "Org1MSP: true")
	contains(t, "after one approval", ready, "Org2MSP: false")
	if printed, err := peer.try(1, append(append([]string{"lifecycle", "chaincode", "commit"}, first...), peer.ordering()...)...); err == nil {
		t.Fatalf("one of three organisations committed a definition: %s", printed)
	}
	lifecycle(2, "approveformyorg", peer.ordering(), source, first)
	contains(t, "the approval", lifecycle(1, "queryapproved", on), "package-id: "+id)
	commit(1, first)
	contains(t, "the definition", lifecycle(3, "querycommitted", on), "Version: 1.0, Sequence: 1")

	invoke := func(flags ...string) (string, error) {
		arguments := append(append([]string{"chaincode", "invoke", "--waitForEvent"}, on...), peer.ordering()...)
		return peer.try(1, append(append(arguments, peer.endorsing(1, 2)...), flags...)...)
	}
	if printed, err := invoke("-c", `{"Args":["Create","car","Ada","7"]}`); err == nil {
		t.Fatalf("a chaincode that was not initialised ran: %s", printed)
	}
	if printed, err := invoke("--isInit", "-c", `{"Args":["Who"]}`); err != nil {
		t.Fatalf("%v: %s", err, printed)
	}
	if printed, err := invoke("-c", `{"Args":["Create","car","Ada","7"]}`); err != nil {
		t.Fatalf("%v: %s", err, printed)
	}
	read := peer.run(t, 2, append([]string{"chaincode", "query", "-c", `{"Args":["Read","car"]}`}, on...)...)
	expect(t, "the asset", strings.TrimSpace(read), `{"id":"car","owner":"Ada","value":7}`)

	for number := 1; number <= 2; number++ {
		lifecycle(number, "approveformyorg", peer.ordering(), source, second)
	}
	commit(2, second)
	contains(t, "the upgrade", lifecycle(3, "querycommitted", []string{"-C", "mychannel"}), "Name: assets, Version: 2.0, Sequence: 2")
	if printed, err := invoke("-c", `{"Args":["Transfer","car","Grace"]}`); err != nil {
		t.Fatalf("%v: %s", err, printed)
	}
}

// Fetches the configuration, changes the size of blocks, signs the update and sends it.
func TestChannelCommandsOfFabricsPeerCommand(t *testing.T) {
	network := start(t)
	peer := newCommandLine(t, network)
	folder := t.TempDir()
	path := func(name string) string { return filepath.Join(folder, name) }
	contains(t, "the channels", peer.run(t, 1, "channel", "list"), "mychannel")
	contains(t, "the channel", peer.run(t, 1, "channel", "getinfo", "-c", "mychannel"), `"height":1`)
	peer.run(t, 1, append([]string{"channel", "fetch", "config", path("block"), "-c", "mychannel"}, peer.ordering()...)...)
	translate := func(arguments ...string) {
		t.Helper()
		printed, err := exec.Command(filepath.Join(peer.programs, "configtxlator"), arguments...).CombinedOutput()
		if err != nil {
			t.Fatalf("configtxlator %s: %v\n%s", strings.Join(arguments, " "), err, printed)
		}
	}
	document := func(name string) map[string]any {
		t.Helper()
		bytes, err := os.ReadFile(path(name))
		if err != nil {
			t.Fatal(err)
		}
		read := map[string]any{}
		if err := json.Unmarshal(bytes, &read); err != nil {
			t.Fatal(err)
		}
		return read
	}
	write := func(name string, document any) {
		t.Helper()
		bytes, err := json.Marshal(document)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path(name), bytes, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	in := func(document any, names ...string) map[string]any {
		for _, name := range names {
			document = document.(map[string]any)[name]
		}
		return document.(map[string]any)
	}
	translate("proto_decode", "--type", "common.Block", "--input", path("block"), "--output", path("block.json"))
	envelope := in(document("block.json"), "data")["data"].([]any)[0]
	config := in(envelope, "payload", "data", "config")
	write("before.json", config)
	in(config, "channel_group", "groups", "Orderer", "values", "BatchSize", "value")["max_message_count"] = 7
	write("after.json", config)
	for _, name := range []string{"before", "after"} {
		translate("proto_encode", "--type", "common.Config", "--input", path(name+".json"), "--output", path(name))
	}
	translate("compute_update", "--channel_id", "mychannel", "--original", path("before"), "--updated", path("after"), "--output", path("update"))
	translate("proto_decode", "--type", "common.ConfigUpdate", "--input", path("update"), "--output", path("update.json"))
	write("envelope.json", map[string]any{"payload": map[string]any{
		"header": map[string]any{"channel_header": map[string]any{"channel_id": "mychannel", "type": 2}},
		"data":   map[string]any{"config_update": document("update.json")},
	}})
	translate("proto_encode", "--type", "common.Envelope", "--input", path("envelope.json"), "--output", path("envelope"))
	send := append([]string{"channel", "update", "-f", path("envelope"), "-c", "mychannel"}, peer.ordering()...)
	if printed, err := peer.try(1, send...); err == nil {
		t.Fatalf("a change by an administrator of another organisation was taken: %s", printed)
	}
	peer.run(t, 0, "channel", "signconfigtx", "-f", path("envelope"))
	peer.run(t, 0, send...)
	peer.run(t, 1, append([]string{"channel", "fetch", "config", path("block"), "-c", "mychannel"}, peer.ordering()...)...)
	translate("proto_decode", "--type", "common.Block", "--input", path("block"), "--output", path("block.json"))
	envelope = in(document("block.json"), "data")["data"].([]any)[0]
	size := in(envelope, "payload", "data", "config", "channel_group", "groups", "Orderer", "values", "BatchSize", "value")
	expect(t, "transactions in a block", fmt.Sprint(size["max_message_count"]), "7")
}
