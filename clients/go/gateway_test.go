// Package clients runs the unmodified Fabric gateway SDK for Go against a Heddle network of its own.
package clients

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hyperledger/fabric-gateway/pkg/client"
	"github.com/hyperledger/fabric-gateway/pkg/hash"
	"github.com/hyperledger/fabric-gateway/pkg/identity"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
)

const readyWithin = time.Minute

type network struct {
	directory string
	gateway   string
	orderer   string
}

func program() string {
	if program := os.Getenv("HEDDLE"); program != "" {
		return program
	}
	return filepath.Join("..", "..", "target", "release", "heddle")
}

func start(t *testing.T) network {
	t.Helper()
	return startWith(t, "")
}

// Starts a network with further sections of its configuration.
func startWith(t *testing.T, sections string) network {
	t.Helper()
	folder := t.TempDir()
	config := filepath.Join(folder, "heddle.toml")
	text := "log = \"warn\"\n[ports]\ngateway = 0\norderer = 0\nmetrics = 0\n" + sections
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	directory := filepath.Join(folder, "network")
	command := exec.Command(program(), "up", "--dir", directory, "--config", config)
	command.Stderr = os.Stderr
	printed, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Signal(syscall.SIGINT)
		if err := command.Wait(); err != nil {
			t.Errorf("heddle did not end cleanly: %v", err)
		}
	})
	ready := make(chan bool, 1)
	go func() {
		lines := bufio.NewScanner(printed)
		for lines.Scan() {
			if strings.Contains(lines.Text(), "ready") {
				ready <- true
			}
		}
		close(ready)
	}()
	select {
	case up := <-ready:
		if !up {
			t.Fatal("heddle ended before it was ready")
		}
	case <-time.After(readyWithin):
		t.Fatal("heddle was not ready in time")
	}
	gateway, orderer := addresses(t, directory)
	return network{directory: directory, gateway: gateway, orderer: orderer}
}

// The ports of the first gateway and of the orderer.
func addresses(t *testing.T, directory string) (string, string) {
	t.Helper()
	bytes, err := os.ReadFile(filepath.Join(directory, "endpoints.json"))
	if err != nil {
		t.Fatal(err)
	}
	var endpoints struct {
		Gateways []struct{ Address string }
		Orderer  string
	}
	if err := json.Unmarshal(bytes, &endpoints); err != nil {
		t.Fatal(err)
	}
	return endpoints.Gateways[0].Address, endpoints.Orderer
}

func only(t *testing.T, folder string) []byte {
	t.Helper()
	files, err := os.ReadDir(folder)
	if err != nil || len(files) == 0 {
		t.Fatalf("%s holds no file: %v", folder, err)
	}
	bytes, err := os.ReadFile(filepath.Join(folder, files[0].Name()))
	if err != nil {
		t.Fatal(err)
	}
	return bytes
}

// A connection to the node of this name, whose TLS authority is in the node's folder.
func connect(t *testing.T, address, node, name string) *grpc.ClientConn {
	t.Helper()
	roots := x509.NewCertPool()
	pem, err := os.ReadFile(filepath.Join(node, "tls", "ca.crt"))
	if err != nil || !roots.AppendCertsFromPEM(pem) {
		t.Fatalf("no TLS roots: %v", err)
	}
	connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
		RootCAs:    roots,
		ServerName: name,
		MinVersion: tls.VersionTLS12,
	})))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
	return connection
}

func (n network) contract(t *testing.T) *client.Contract {
	t.Helper()
	return n.channel(t).GetContract("basic")
}

func (n network) channel(t *testing.T) *client.Network {
	t.Helper()
	organization := filepath.Join(n.directory, "organizations", "peerOrganizations", "org1.example.com")
	const peer = "peer0.org1.example.com"
	connection := connect(t, n.gateway, filepath.Join(organization, "peers", peer), peer)
	user := filepath.Join(organization, "users", "User1@org1.example.com", "msp")
	certificate, err := identity.CertificateFromPEM(only(t, filepath.Join(user, "signcerts")))
	if err != nil {
		t.Fatal(err)
	}
	id, err := identity.NewX509Identity("Org1MSP", certificate)
	if err != nil {
		t.Fatal(err)
	}
	key, err := identity.PrivateKeyFromPEM(only(t, filepath.Join(user, "keystore")))
	if err != nil {
		t.Fatal(err)
	}
	sign, err := identity.NewPrivateKeySign(key)
	if err != nil {
		t.Fatal(err)
	}
	gateway, err := client.Connect(id, client.WithSign(sign), client.WithHash(hash.SHA256),
		client.WithClientConnection(connection))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = gateway.Close() })
	return gateway.GetNetwork("mychannel")
}

func TestSubmitAndEvaluate(t *testing.T) {
	contract := start(t).contract(t)
	if _, err := contract.SubmitTransaction("CreateAsset", "asset-go", "blue", "5", "Tomoko", "300"); err != nil {
		t.Fatal(err)
	}
	result, err := contract.EvaluateTransaction("ReadAsset", "asset-go")
	if err != nil {
		t.Fatal(err)
	}
	var asset struct {
		ID             string
		Owner          string
		AppraisedValue int
	}
	if err := json.Unmarshal(result, &asset); err != nil {
		t.Fatal(err)
	}
	if asset.ID != "asset-go" || asset.Owner != "Tomoko" || asset.AppraisedValue != 300 {
		t.Fatalf("read back %s", result)
	}
	old, err := contract.SubmitTransaction("TransferAsset", "asset-go", "Saptha")
	if err != nil || string(old) != "Tomoko" {
		t.Fatalf("the transfer returned %q, %v", old, err)
	}
	_, err = contract.EvaluateTransaction("ReadAsset", "asset-nobody")
	if status.Code(err) != codes.Unknown {
		t.Fatalf("a missing asset gave %v", err)
	}
	_, err = contract.SubmitTransaction("UpdateAsset", "asset-nobody", "blue", "5", "Tomoko", "300")
	if status.Code(err) != codes.Aborted {
		t.Fatalf("an update of a missing asset gave %v", err)
	}
}
