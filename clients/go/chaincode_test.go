package clients

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
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

// Builds the chaincode of these tests, and runs it at an address until the end of the test. It is started again when it ends.
func startChaincode(t *testing.T, id, address string) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "assets")
	build := exec.Command("go", "build", "-o", program, ".")
	build.Dir = filepath.Join("..", "chaincode", "go")
	if printed, err := build.CombinedOutput(); err != nil {
		t.Fatalf("the chaincode cannot be built: %v\n%s", err, printed)
	}
	stopped, ended := make(chan bool), make(chan bool)
	go func() {
		defer close(ended)
		for {
			command := exec.Command(program)
			command.Env = append(os.Environ(), "CHAINCODE_ID="+id, "CHAINCODE_SERVER_ADDRESS="+address)
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
			case <-exited:
			}
		}
	}()
	t.Cleanup(func() {
		close(stopped)
		<-ended
	})
	for deadline := time.Now().Add(readyWithin); ; time.Sleep(20 * time.Millisecond) {
		connection, err := net.Dial("tcp", address)
		if err == nil {
			_ = connection.Close()
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
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
	startChaincode(t, id, address)
	definition := &chaincode.Definition{
		ChannelName: "mychannel", Name: "assets", Version: "1.0", Sequence: 1, PackageID: id,
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
	contract := network.channel(t).GetContract("assets")
	eventually(t, func() error {
		_, err := contract.EvaluateTransaction("Who")
		return err
	})
	useAssets(t, contract)
}

// Chaincodes that `heddle chaincode new` writes, run by `heddle chaincode run`.
func TestNewChaincodes(t *testing.T) {
	network := start(t)
	for _, language := range []string{"go", "typescript"} {
		t.Run(language, func(t *testing.T) {
			folder := filepath.Join(t.TempDir(), "assets-"+language)
			if printed, err := exec.Command(program(), "chaincode", "new", language, folder).CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, printed)
			}
			command := exec.Command(program(), "chaincode", "run", folder, "--dir", network.directory)
			command.Stderr = os.Stderr
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
			}
			if !isReady {
				t.Fatalf("the chaincode is not ready: %v", command.Wait())
			}
			go func() {
				for lines.Scan() {
				}
			}()
			contract := network.channel(t).GetContract("assets-" + language)
			eventually(t, func() error {
				_, err := contract.SubmitTransaction("Put", "car", "Ada")
				return err
			})
			expect(t, "Get", evaluate(t, contract, "Get", "car"), `{"id":"car","owner":"Ada"}`)
			if err := command.Process.Signal(syscall.SIGINT); err != nil {
				t.Fatal(err)
			}
			if err := command.Wait(); err != nil {
				t.Fatalf("the command did not end cleanly: %v", err)
			}
		})
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
