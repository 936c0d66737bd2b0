package clients

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hyperledger/fabric-admin-sdk/pkg/chaincode"
	"github.com/hyperledger/fabric-gateway/pkg/client"
)

// An address of this machine at which nothing listens yet.
func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

// Runs the chaincode of these tests at an address until the end of the test. Returns what kills the process.
func startChaincode(t *testing.T, id, address string, variables ...string) func() {
	t.Helper()
	kill := runChaincode(t, nil, append(variables, "CHAINCODE_ID="+id, "CHAINCODE_SERVER_ADDRESS="+address)...)
	for deadline := time.Now().Add(readyWithin); ; time.Sleep(20 * time.Millisecond) {
		connection, err := net.Dial("tcp", address)
		if err == nil {
			_ = connection.Close()
			return kill
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// Builds the chaincode of these tests, and runs it until the end of the test. It is started again when it ends.
// Returns what kills the process.
func runChaincode(t *testing.T, arguments []string, variables ...string) func() {
	t.Helper()
	program := filepath.Join(t.TempDir(), "assets")
	build := exec.Command("go", "build", "-o", program, ".")
	build.Dir = filepath.Join("..", "chaincode", "go")
	if printed, err := build.CombinedOutput(); err != nil {
		t.Fatalf("the chaincode cannot be built: %v\n%s", err, printed)
	}
	stopped, ended, killed := make(chan bool), make(chan bool), make(chan bool)
	go func() {
		defer close(ended)
		for {
			command := exec.Command(program, arguments...)
			command.Env = append(os.Environ(), variables...)
			if err := command.Start(); err != nil {
				t.Errorf("the chaincode does not start: %v", err)
				return
			}
			exited := make(chan bool)
			go func() {
				_ = command.Wait()
				close(exited)
			}()
			select {
			case <-stopped:
				_ = command.Process.Kill()
				<-exited
				return
			case <-killed:
				_ = command.Process.Kill()
				<-exited
			case <-exited:
				time.Sleep(50 * time.Millisecond)
			}
		}
	}()
	t.Cleanup(func() {
		close(stopped)
		<-ended
	})
	return func() { killed <- true }
}

func submit(t *testing.T, contract *client.Contract, function string, args ...string) string {
	t.Helper()
	result, err := contract.SubmitTransaction(function, args...)
	if err != nil {
		t.Fatalf("%s: %v", function, err)
	}
	return string(result)
}

func evaluate(t *testing.T, contract *client.Contract, function string, args ...string) string {
	t.Helper()
	result, err := contract.EvaluateTransaction(function, args...)
	if err != nil {
		t.Fatalf("%s: %v", function, err)
	}
	return string(result)
}

func expect(t *testing.T, what, found, expected string) {
	t.Helper()
	if found != expected {
		t.Fatalf("%s: %q instead of %q", what, found, expected)
	}
}

// What the chaincode does for any definition of it.
func useAssets(t *testing.T, contract *client.Contract) {
	t.Helper()
	submit(t, contract, "Create", "car", "Ada", "7")
	submit(t, contract, "Create", "boat", "Ada", "9")
	submit(t, contract, "Transfer", "car", "Bob")
	expect(t, "Read", evaluate(t, contract, "Read", "car"), `{"id":"car","owner":"Bob","value":7}`)
	expect(t, "OwnedBy", evaluate(t, contract, "OwnedBy", "Ada"), `["boat","car"]`)
	expect(t, "Who", evaluate(t, contract, "Who"), "Org1MSP")
	_, err := contract.SubmitTransaction("Create", "car", "Eve", "1")
	if err == nil || !strings.Contains(fmt.Sprintf("%+v", err), "car exists already") {
		t.Fatalf("a second car gave %+v", err)
	}

	// More rows than one batch of writes, of keys or of results takes.
	submit(t, contract, "CreateMany", "m", "2100")
	expect(t, "Count", evaluate(t, contract, "Count", "m", "n"), "2100")
	expect(t, "Count", submit(t, contract, "Count", "m00000", "m00100"), "100")
	ids := make([]string, 0, 1500)
	for number := 0; number < 1500; number++ {
		ids = append(ids, fmt.Sprintf("m%05d", 2*number))
	}
	wanted, err := json.Marshal(ids)
	if err != nil {
		t.Fatal(err)
	}
	expect(t, "ReadMany", evaluate(t, contract, "ReadMany", string(wanted)), "1050")

	// The native contract and its event come from the same transaction.
	submit(t, contract, "Call", "basic", "AssetExists", "car")
	var changes []struct{ Owner string }
	if err := json.Unmarshal([]byte(evaluate(t, contract, "History", "car")), &changes); err != nil {
		t.Fatal(err)
	}
	if len(changes) != 2 || changes[0].Owner != "Bob" || changes[1].Owner != "Ada" {
		t.Fatalf("the history of the car is %v", changes)
	}

	// A chaincode that ends in the middle of a call fails that call; the next ones find it again.
	if _, err := contract.EvaluateTransaction("Crash"); err == nil {
		t.Fatal("a chaincode answered after its end")
	}
	eventually(t, func() error {
		_, err := contract.EvaluateTransaction("Read", "car")
		return err
	})
}

// A package as Fabric's admin SDK installs it, approved and committed by the three organisations.
func TestInstalledGoChaincode(t *testing.T) {
	network := start(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	address, folder := freeAddress(t), t.TempDir()
	err := chaincode.PackageCCAAS(chaincode.Connection{Address: address, DialTimeout: "10s"},
		chaincode.Metadata{Type: "ccaas", Label: "assets_1.0"}, folder, "assets.tar.gz")
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile(filepath.Join(folder, "assets.tar.gz"))
	if err != nil {
		t.Fatal(err)
	}
	id := chaincode.GetPackageID("assets_1.0", file)
	kill := startChaincode(t, id, address)
	definition := &chaincode.Definition{
		ChannelName: "mychannel", Name: "assets", Version: "1.0", Sequence: 1, PackageID: id, Collections: shared(),
	}
	var first *chaincode.Gateway
	for index, gateway := range gateways(t, network.directory) {
		connection, signer := administratorAt(t, network.directory, gateway, index+1)
		peer := chaincode.NewPeer(connection, signer)
		installed, err := peer.Install(ctx, bytes.NewReader(file))
		if err != nil {
			t.Fatal(err)
		}
		expect(t, "the package id", installed.GetPackageId(), id)
		if _, err := peer.Install(ctx, bytes.NewReader(file)); err == nil {
			t.Fatal("a package was installed twice")
		}
		all, err := peer.QueryInstalled(ctx)
		if err != nil || len(all.GetInstalledChaincodes()) != 1 {
			t.Fatalf("installed: %v, %v", all, err)
		}
		back, err := peer.GetInstalled(ctx, id)
		if err != nil || !bytes.Equal(back, file) {
			t.Fatalf("another package came back: %v", err)
		}
		admin := chaincode.NewGateway(connection, signer)
		if err := admin.Approve(ctx, definition); err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = admin
		}
	}
	eventually(t, func() error { return first.Commit(ctx, definition) })
	connection, signer := administratorAt(t, network.directory, network.gateway, 1)
	installed, err := chaincode.NewPeer(connection, signer).QueryInstalled(ctx)
	if err != nil || len(installed.GetInstalledChaincodes()) != 1 {
		t.Fatalf("installed: %v, %v", installed, err)
	}
	uses := installed.GetInstalledChaincodes()[0].GetReferences()["mychannel"].GetChaincodes()
	if len(uses) != 1 || uses[0].GetName() != "assets" || uses[0].GetVersion() != "1.0" {
		t.Fatalf("the package is used by %v", uses)
	}
	contract := network.channel(t).GetContract("assets")
	eventually(t, func() error {
		_, err := contract.EvaluateTransaction("Who")
		return err
	})
	useAssets(t, contract)
	usePages(t, contract)
	usePrivateData(t, contract)
	killInTheMiddle(t, contract, kill)
}

// An authority, and a certificate and key from it for the package with the label assets_1.0, as files.
func issue(t *testing.T, folder string) (authority, certificate, key string) {
	t.Helper()
	file := func(name, kind string, bytes []byte) string {
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: bytes}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	make := func(name string, parent *x509.Certificate, signer *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		template := &x509.Certificate{
			SerialNumber: big.NewInt(time.Now().UnixNano()),
			Subject:      pkix.Name{CommonName: name},
			NotBefore:    time.Now().Add(-time.Hour),
			NotAfter:     time.Now().Add(time.Hour),
			ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
			IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
			KeyUsage:     x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		}
		if parent == nil {
			template.IsCA, template.BasicConstraintsValid = true, true
			parent, signer = template, key
		}
		bytes, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
		if err != nil {
			t.Fatal(err)
		}
		made, err := x509.ParseCertificate(bytes)
		if err != nil {
			t.Fatal(err)
		}
		return made, key
	}
	root, rootKey := make("chaincodes", nil, nil)
	leaf, leafKey := make("assets_1.0", root, rootKey)
	der, err := x509.MarshalPKCS8PrivateKey(leafKey)
	if err != nil {
		t.Fatal(err)
	}
	return file("authority.pem", "CERTIFICATE", root.Raw), file("client.pem", "CERTIFICATE", leaf.Raw),
		file("client.key", "PRIVATE KEY", der)
}

// A chaincode that dials its peer, as chaincodes did before they were services.
func TestGoChaincodeThatConnectsToItsPeer(t *testing.T) {
	folder := t.TempDir()
	authority, certificate, key := issue(t, folder)
	address := freeAddress(t)
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	network := startWith(t, fmt.Sprintf("[chaincode_port]\nport = %s\nauthorities = %q\n", port, authority))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err = chaincode.PackageCCAAS(chaincode.Connection{}, chaincode.Metadata{Type: "ccaas", Label: "assets_1.0"}, folder, "assets.tar.gz")
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile(filepath.Join(folder, "assets.tar.gz"))
	if err != nil {
		t.Fatal(err)
	}
	id := chaincode.GetPackageID("assets_1.0", file)
	definition := chaincode.Definition{ChannelName: "mychannel", Name: "assets", Version: "1.0", Sequence: 1}
	var first *chaincode.Gateway
	for index, gateway := range gateways(t, network.directory) {
		connection, signer := administratorAt(t, network.directory, gateway, index+1)
		admin, approved := chaincode.NewGateway(connection, signer), definition
		if first == nil {
			// Only this organisation runs it; the others have no package.
			first, approved.PackageID = admin, id
			if _, err := chaincode.NewPeer(connection, signer).Install(ctx, bytes.NewReader(file)); err != nil {
				t.Fatal(err)
			}
		}
		if err := admin.Approve(ctx, &approved); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, func() error { return first.Commit(ctx, &definition) })
	peer := filepath.Join(network.directory, "organizations", "peerOrganizations", "org1.example.com", "peers", "peer0.org1.example.com")
	variables := []string{
		"CORE_CHAINCODE_ID_NAME=" + id, "CORE_PEER_TLS_ENABLED=true", "CORE_PEER_TLS_ROOTCERT_FILE=" + filepath.Join(peer, "tls", "ca.crt"),
	}
	contract := network.channel(t).GetContract("assets")
	if _, err := contract.EvaluateTransaction("Who"); err == nil {
		t.Fatal("a chaincode answered that does not run")
	}
	runChaincode(t, []string{"-peer.address", "localhost:" + port},
		append(variables, "CORE_TLS_CLIENT_CERT_FILE="+certificate, "CORE_TLS_CLIENT_KEY_FILE="+key)...)
	eventually(t, func() error {
		_, err := contract.EvaluateTransaction("Who")
		return err
	})
	useAssets(t, contract)
}

// Runs `heddle chaincode run` until the returned function ends it, or the test.
func runCommand(t *testing.T, network network, arguments ...string) func() {
	t.Helper()
	command := exec.Command(program(), append([]string{"chaincode", "run", "--dir", network.directory}, arguments...)...)
	var errors bytes.Buffer
	command.Stderr = io.MultiWriter(os.Stderr, &errors)
	printed, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(printed)
	isReady := false
	for !isReady && lines.Scan() {
		isReady = strings.Contains(lines.Text(), "is ready")
		errors.WriteString(lines.Text() + "\n")
	}
	if !isReady {
		t.Fatalf("the chaincode is not ready: %v\n%s", command.Wait(), errors.String())
	}
	go func() {
		for lines.Scan() {
		}
	}()
	hasEnded := false
	end := func() {
		if hasEnded {
			return
		}
		hasEnded = true
		if err := command.Process.Signal(syscall.SIGINT); err != nil {
			t.Error(err)
		}
		if err := command.Wait(); err != nil {
			t.Errorf("the command did not end cleanly: %v", err)
		}
	}
	t.Cleanup(end)
	return end
}

// Functions with which a test ends the chaincode in Go, and asks for its environment.
const furtherFunctions = `package main

import "os"

func (*Assets) Crash() { os.Exit(3) }

func (*Assets) Organization() string { return os.Getenv("CORE_PEER_LOCALMSPID") }

func (*Assets) MayListen() bool { return os.Getenv("CHAINCODE_SERVER_ADDRESS") != "" }
`

// Chaincodes that `heddle chaincode new` writes, run by `heddle chaincode run`.
func TestNewChaincodes(t *testing.T) {
	network := start(t)
	for _, language := range []string{"go", "typescript", "java"} {
		t.Run(language, func(t *testing.T) {
			expected := `{"id":"car","owner":"Ada"}`
			if language == "java" {
				if _, err := exec.LookPath("mvn"); err != nil {
					t.Skip("Maven is not installed")
				}
				expected = "Ada"
			}
			folder := filepath.Join(t.TempDir(), "assets-"+language)
			if printed, err := exec.Command(program(), "chaincode", "new", language, folder).CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, printed)
			}
			if language == "go" {
				if err := os.WriteFile(filepath.Join(folder, "further.go"), []byte(furtherFunctions), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			end := runCommand(t, network, folder)
			contract := network.channel(t).GetContract("assets-" + language)
			eventually(t, func() error {
				_, err := contract.SubmitTransaction("Put", "car", "Ada")
				return err
			})
			expect(t, "Get", evaluate(t, contract, "Get", "car"), expected)
			if language == "go" {
				expect(t, "Organization", evaluate(t, contract, "Organization"), "Org1MSP")
				if _, err := contract.EvaluateTransaction("Crash"); err == nil {
					t.Fatal("a chaincode answered after its end")
				}
				eventually(t, func() error {
					_, err := contract.EvaluateTransaction("Get", "car")
					return err
				})
			}
			end()
			if language == "typescript" {
				// Fabric's program for Node.js runs it in either role.
				end := runCommand(t, network, "--as", "client", folder)
				eventually(t, func() error {
					_, err := contract.SubmitTransaction("Put", "car", "Ada")
					return err
				})
				end()
			}
		})
	}
}

// The main function of a chaincode that can only connect to its peer.
const shimStart = `package main

import (
	"log"

	"github.com/hyperledger/fabric-chaincode-go/v2/shim"
	"github.com/hyperledger/fabric-contract-api-go/v2/contractapi"
)

func main() {
	chaincode, err := contractapi.NewChaincode(&Assets{})
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(shim.Start(chaincode))
}
`

// The main function of a chaincode that listens if its environment names an address, and otherwise connects.
const contractStart = `package main

import (
	"log"

	"github.com/hyperledger/fabric-contract-api-go/v2/contractapi"
)

func main() {
	chaincode, err := contractapi.NewChaincode(&Assets{})
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(chaincode.Start())
}
`

// Chaincodes that connect to their peer, run by `heddle chaincode run`.
func TestNewChaincodesThatConnect(t *testing.T) {
	network := start(t)
	folder := filepath.Join(t.TempDir(), "assets")
	write := func(file, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(folder, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if printed, err := exec.Command(program(), "chaincode", "new", "go", folder).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, printed)
	}
	write("further.go", furtherFunctions)
	contract := network.channel(t).GetContract("assets")
	for index, how := range []struct {
		name, main, listens string
		arguments           []string
	}{
		{"shim.Start", shimStart, "true", nil},
		{"Start of the contract API", contractStart, "true", nil},
		{"Start of the contract API as a client", contractStart, "false", []string{"--as", "client"}},
	} {
		t.Run(how.name, func(t *testing.T) {
			write("main.go", how.main)
			end := runCommand(t, network, append(how.arguments, folder)...)
			owner := fmt.Sprintf("Ada %d", index)
			eventually(t, func() error {
				_, err := contract.SubmitTransaction("Put", "car", owner)
				return err
			})
			expected := fmt.Sprintf(`{"id":"car","owner":%q}`, owner)
			expect(t, "Get", evaluate(t, contract, "Get", "car"), expected)
			expect(t, "Organization", evaluate(t, contract, "Organization"), "Org1MSP")
			expect(t, "MayListen", evaluate(t, contract, "MayListen"), how.listens)
			if _, err := contract.EvaluateTransaction("Crash"); err == nil {
				t.Fatal("a chaincode answered after its end")
			}
			eventually(t, func() error {
				_, err := contract.EvaluateTransaction("Get", "car")
				return err
			})
			end()
		})
	}
}

// The chaincode and the peers prove to each other who they are.
func TestGoChaincodeOverTLS(t *testing.T) {
	authority, certificate, key := issue(t, t.TempDir())
	address := freeAddress(t)
	startChaincode(t, "assets", address,
		"CHAINCODE_TLS_KEY="+key, "CHAINCODE_TLS_CERT="+certificate, "CHAINCODE_CLIENT_CA_CERT="+authority)
	section := "[[chaincodes]]\nname = %q\naddress = %q\ntls_authority = %q\n"
	sections := fmt.Sprintf(section, "assets", address, authority) +
		fmt.Sprintf("tls_certificate = %q\ntls_key = %q\n", certificate, key) + fmt.Sprintf(section, "stranger", address, authority)
	channel := startWith(t, "[contracts]\nassets = {}\nstranger = {}\n"+sections).channel(t)
	submit(t, channel.GetContract("assets"), "Create", "car", "Ada", "7")
	if _, err := channel.GetContract("stranger").EvaluateTransaction("Read", "car"); err == nil {
		t.Fatal("a chaincode served a peer without a certificate")
	}
}

func TestGoChaincodeOfTheConfiguration(t *testing.T) {
	address := freeAddress(t)
	startChaincode(t, "assets", address)
	network := startWith(t, fmt.Sprintf("[contracts]\nbasic = {}\nassets = {}\n[[chaincodes]]\nname = \"assets\"\naddress = %q\n", address))
	channel := network.channel(t)
	events, err := channel.ChaincodeEvents(t.Context(), "assets")
	if err != nil {
		t.Fatal(err)
	}
	useAssets(t, channel.GetContract("assets"))
	select {
	case event := <-events:
		expect(t, "the event", event.EventName+" "+string(event.Payload), `created {"id":"car","owner":"Ada","value":7}`)
	case <-time.After(followsWithin):
		t.Fatal("no event came")
	}
}
