package clients

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hyperledger/fabric-gateway/pkg/client"
)

// A chaincode as a service: a process that is started again when it ends.
type service struct {
	address string
}

// Builds the chaincode of these tests, and runs it until the end of the test.
func startChaincode(t *testing.T, id string) service {
	t.Helper()
	program := filepath.Join(t.TempDir(), "assets")
	build := exec.Command("go", "build", "-o", program, ".")
	build.Dir = filepath.Join("..", "chaincode", "go")
	if printed, err := build.CombinedOutput(); err != nil {
		t.Fatalf("the chaincode cannot be built: %v\n%s", err, printed)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
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
			return service{address}
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

func TestGoChaincodeOfTheConfiguration(t *testing.T) {
	assets := startChaincode(t, "assets")
	network := startWith(t, fmt.Sprintf("[contracts]\nbasic = {}\nassets = {}\n[[chaincodes]]\nname = \"assets\"\naddress = %q\n", assets.address))
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
