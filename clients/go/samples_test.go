package clients

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/json"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hyperledger/fabric-gateway/pkg/client"
	"github.com/hyperledger/fabric-gateway/pkg/hash"
	"github.com/hyperledger/fabric-gateway/pkg/identity"
)

// The variable that names the folder with Fabric's samples. Without it these tests are skipped.
const fabricSamples = "FABRIC_SAMPLES"

// The X.509 extension in which Fabric's certificate authority puts attributes.
var attributes = asn1.ObjectIdentifier{1, 2, 3, 4, 5, 6, 7, 8, 1}

// Runs the unmodified chaincode in a folder of the samples, and returns it as the user of each organisation calls it.
func startSample(t *testing.T, folder string, arguments ...string) (network, []*client.Contract) {
	t.Helper()
	samples := os.Getenv(fabricSamples)
	if samples == "" {
		t.Skipf("%s is not set to the folder of Fabric's samples", fabricSamples)
	}
	// The command builds in the folder.
	source := filepath.Join(t.TempDir(), "sample")
	if err := os.CopyFS(source, os.DirFS(filepath.Join(samples, folder))); err != nil {
		t.Fatal(err)
	}
	relaxCompiler(t, filepath.Join(source, "tsconfig.json"))
	for index, argument := range arguments {
		arguments[index] = strings.ReplaceAll(argument, "SOURCE", source)
	}
	network := start(t)
	runCommand(t, network, append([]string{source, "--name", "sample"}, arguments...)...)
	contracts := make([]*client.Contract, 0, 3)
	for number := 1; number <= 3; number++ {
		domain := fmt.Sprintf("org%d.example.com", number)
		user := filepath.Join(network.organization(number), "users", "User1@"+domain, "msp")
		certificate, err := identity.CertificateFromPEM(only(t, filepath.Join(user, "signcerts")))
		if err != nil {
			t.Fatal(err)
		}
		key, err := identity.PrivateKeyFromPEM(only(t, filepath.Join(user, "keystore")))
		if err != nil {
			t.Fatal(err)
		}
		contracts = append(contracts, network.contractAs(t, number, certificate, key, "sample"))
	}
	return network, contracts
}

// The settings of a sample in TypeScript reject a function of it that nothing calls.
func relaxCompiler(t *testing.T, path string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return
	}
	if err == nil {
		relaxed := strings.Replace(string(text), `"noUnusedLocals": true`, `"noUnusedLocals": false`, 1)
		err = os.WriteFile(path, []byte(relaxed), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (n network) organization(number int) string {
	return filepath.Join(n.directory, "organizations", "peerOrganizations", fmt.Sprintf("org%d.example.com", number))
}

// A contract at the gateway of an organisation, as a user of that organisation.
func (n network) contractAs(t *testing.T, number int, certificate *x509.Certificate, key any, name string) *client.Contract {
	t.Helper()
	peer := fmt.Sprintf("peer0.org%d.example.com", number)
	connection := connect(t, gateways(t, n.directory)[number-1], filepath.Join(n.organization(number), "peers", peer), peer)
	id, err := identity.NewX509Identity(fmt.Sprintf("Org%dMSP", number), certificate)
	if err != nil {
		t.Fatal(err)
	}
	sign, err := identity.NewPrivateKeySign(key)
	if err != nil {
		t.Fatal(err)
	}
	gateway, err := client.Connect(id, client.WithSign(sign), client.WithHash(hash.SHA256), client.WithClientConnection(connection))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = gateway.Close() })
	return gateway.GetNetwork("mychannel").GetContract(name)
}

// Transient data of one entry.
func transient(name, value string) client.ProposalOption {
	return client.WithTransient(map[string][]byte{name: []byte(value)})
}

func endorsingAt(organizations ...string) client.ProposalOption {
	return client.WithEndorsingOrganizations(organizations...)
}

func mustSubmit(t *testing.T, contract *client.Contract, function string, options ...client.ProposalOption) string {
	t.Helper()
	result, err := contract.Submit(function, options...)
	if err != nil {
		t.Fatalf("%s: %+v", function, err)
	}
	return string(result)
}

// A call that must fail for a reason.
func mustFail(t *testing.T, contract *client.Contract, reason, function string, options ...client.ProposalOption) {
	t.Helper()
	_, err := contract.Submit(function, options...)
	if err == nil || !strings.Contains(fmt.Sprintf("%+v", err), reason) {
		t.Fatalf("%s gave %+v instead of %q", function, err, reason)
	}
}

// An answer that comes once the organisation's peer has followed.
func eventuallyEvaluates(t *testing.T, contract *client.Contract, expected, function string, options ...client.ProposalOption) {
	t.Helper()
	eventually(t, func() error {
		result, err := contract.Evaluate(function, options...)
		if err == nil && string(result) != expected {
			err = fmt.Errorf("%s: %q instead of %q", function, result, expected)
		}
		return err
	})
}

func args(args ...string) client.ProposalOption {
	return client.WithArguments(args...)
}

func TestSampleBasic(t *testing.T) {
	_, contracts := startSample(t, "asset-transfer-basic/chaincode-go")
	one, three := contracts[0], contracts[2]
	mustSubmit(t, one, "InitLedger")
	var all []struct{ ID string }
	if err := json.Unmarshal([]byte(evaluate(t, one, "GetAllAssets")), &all); err != nil || len(all) != 6 {
		t.Fatalf("all assets: %v, %v", all, err)
	}
	mustSubmit(t, one, "CreateAsset", args("boat", "blue", "5", "Ada", "300"))
	mustFail(t, one, "already exists", "CreateAsset", args("boat", "blue", "5", "Ada", "300"))
	expect(t, "TransferAsset", mustSubmit(t, one, "TransferAsset", args("boat", "Bob")), "Ada")
	boat := `{"AppraisedValue":300,"Color":"blue","ID":"boat","Owner":"Bob","Size":5}`
	eventuallyEvaluates(t, three, boat, "ReadAsset", args("boat"))
	mustFail(t, one, "does not exist", "UpdateAsset", args("car", "blue", "5", "Ada", "300"))
	everyone := endorsingAt("Org1MSP", "Org2MSP", "Org3MSP")
	eventually(t, func() error {
		_, err := three.Submit("DeleteAsset", args("boat"), everyone)
		return err
	})
	expect(t, "AssetExists", evaluate(t, three, "AssetExists", "boat"), "false")
}

func TestSampleEvents(t *testing.T) {
	network, contracts := startSample(t, "asset-transfer-events/chaincode-go")
	events, err := network.channel(t).ChaincodeEvents(t.Context(), "sample", client.WithStartBlock(0))
	if err != nil {
		t.Fatal(err)
	}
	one := contracts[0]
	mustSubmit(t, one, "CreateAsset", args("car", "blue", "5", "Ada", "300"))
	mustSubmit(t, one, "UpdateAsset", args("car", "red", "5", "Ada", "200"))
	mustSubmit(t, one, "TransferAsset", args("car", "Bob"))
	mustFail(t, one, "does not exist", "DeleteAsset", args("boat"))
	mustSubmit(t, one, "DeleteAsset", args("car"))
	car := `{"AppraisedValue":%d,"Color":"%s","ID":"car","Owner":"%s","Size":5}`
	for _, expected := range []string{
		"CreateAsset " + fmt.Sprintf(car, 300, "blue", "Ada"), "UpdateAsset " + fmt.Sprintf(car, 200, "red", "Ada"),
		"TransferAsset " + fmt.Sprintf(car, 200, "red", "Bob"), "DeleteAsset " + fmt.Sprintf(car, 200, "red", "Bob"),
	} {
		select {
		case event := <-events:
			expect(t, "an event", event.EventName+" "+string(event.Payload), expected)
		case <-time.After(followsWithin):
			t.Fatalf("no event instead of %s", expected)
		}
	}
}

// The policy of the samples with private data.
const eitherOfTwo = "OR('Org1MSP.peer','Org2MSP.peer')"

func TestSamplePrivateData(t *testing.T) {
	const folder = "asset-transfer-private-data/chaincode-go"
	_, contracts := startSample(t, folder, "--policy", eitherOfTwo, "--collections", "SOURCE/collections_config.json")
	seller, buyer := contracts[0], contracts[1]
	mustSubmit(t, seller, "CreateAsset", endorsingAt("Org1MSP"),
		transient("asset_properties", `{"objectType":"asset","assetID":"car","color":"blue","size":5,"appraisedValue":100}`))
	details := `{"assetID":"car","appraisedValue":100}`
	ofSeller := args("Org1MSPPrivateCollection", "car")
	expect(t, "details", evaluate(t, seller, "ReadAssetPrivateDetails", "Org1MSPPrivateCollection", "car"), details)
	if result, err := buyer.Evaluate("ReadAssetPrivateDetails", ofSeller); err == nil {
		t.Fatalf("another organisation read the details: %s", result)
	}
	transfer := transient("asset_owner", `{"assetID":"car","buyerMSP":"Org2MSP"}`)
	mustFail(t, seller, "AgreeToTransfer must be called by the buyer first", "TransferAsset", transfer, endorsingAt("Org1MSP"))
	eventually(t, func() error {
		_, err := buyer.Submit("AgreeToTransfer", transient("asset_value", details), endorsingAt("Org2MSP"))
		return err
	})
	var agreement struct{ BuyerID string }
	if err := json.Unmarshal([]byte(evaluate(t, buyer, "ReadTransferAgreement", "car")), &agreement); err != nil || agreement.BuyerID == "" {
		t.Fatalf("the agreement is %v, %v", agreement, err)
	}
	eventually(t, func() error {
		_, err := seller.Submit("TransferAsset", transfer, endorsingAt("Org1MSP"))
		return err
	})
	var car struct{ Owner string }
	if err := json.Unmarshal([]byte(evaluate(t, seller, "ReadAsset", "car")), &car); err != nil || car.Owner != agreement.BuyerID {
		t.Fatalf("the owner is %v instead of %s, %v", car, agreement.BuyerID, err)
	}
	expect(t, "the seller's details", evaluate(t, seller, "ReadAssetPrivateDetails", "Org1MSPPrivateCollection", "car"), "")
	eventuallyEvaluates(t, buyer, details, "ReadAssetPrivateDetails", args("Org2MSPPrivateCollection", "car"))

	mustSubmit(t, seller, "CreateAsset", endorsingAt("Org1MSP"),
		transient("asset_properties", `{"objectType":"asset","assetID":"boat","color":"red","size":9,"appraisedValue":50}`))
	mustSubmit(t, seller, "PurgeAsset", transient("asset_purge", `{"assetID":"boat"}`), endorsingAt("Org1MSP"))
	expect(t, "the purged asset", evaluate(t, seller, "ReadAsset", "boat"), "")
}

// A user whose certificate has an attribute, from the authority of an organisation.
func withAttribute(t *testing.T, organization, name, value string) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	folder := filepath.Join(organization, "ca")
	files, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	var parent *x509.Certificate
	var signer any
	for _, file := range files {
		pem, err := os.ReadFile(filepath.Join(folder, file.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(file.Name(), "_sk") || strings.HasSuffix(file.Name(), ".key") {
			signer, err = identity.PrivateKeyFromPEM(pem)
		} else {
			parent, err = identity.CertificateFromPEM(pem)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	text, err := json.Marshal(map[string]map[string]string{"attrs": {name: value}})
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber:    big.NewInt(time.Now().UnixNano()),
		Subject:         pkix.Name{CommonName: "creator", OrganizationalUnit: []string{"client"}},
		NotBefore:       time.Now().Add(-time.Minute),
		NotAfter:        time.Now().Add(time.Hour),
		KeyUsage:        x509.KeyUsageDigitalSignature,
		ExtraExtensions: []pkix.Extension{{Id: attributes, Value: text}},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return certificate, key
}

func TestSampleAttributeBasedAccess(t *testing.T) {
	network, contracts := startSample(t, "asset-transfer-abac/chaincode-go")
	certificate, key := withAttribute(t, network.organization(1), "abac.creator", "true")
	creator, stranger := network.contractAs(t, 1, certificate, key, "sample"), contracts[0]
	car := args("car", "blue", "5", "300")
	mustFail(t, stranger, "not authorized to create asset", "CreateAsset", car)
	mustSubmit(t, creator, "CreateAsset", car)
	mustFail(t, stranger, "does not own asset", "UpdateAsset", args("car", "red", "5", "300"))
	mustSubmit(t, creator, "UpdateAsset", args("car", "red", "5", "300"))
	owner := evaluate(t, stranger, "GetSubmittingClientIdentity")
	if !strings.HasPrefix(owner, "x509::CN=") {
		t.Fatalf("the user is %q", owner)
	}
	mustSubmit(t, creator, "TransferAsset", args("car", owner))
	mustFail(t, creator, "does not own asset", "DeleteAsset", args("car"))
	mustSubmit(t, stranger, "DeleteAsset", args("car"))
}

func TestSampleStateBasedEndorsement(t *testing.T) {
	_, contracts := startSample(t, "asset-transfer-sbe/chaincode-typescript")
	one, two := contracts[0], contracts[1]
	mustSubmit(t, one, "CreateAsset", args("car", "100", "Ada"), endorsingAt("Org1MSP"))
	eventuallyEvaluates(t, two, `{"ID":"car","Value":100,"Owner":"Ada","OwnerOrg":"Org1MSP"}`, "ReadAsset", args("car"))
	mustFail(t, two, "ENDORSEMENT_POLICY_FAILURE", "UpdateAsset", args("car", "200"), endorsingAt("Org2MSP"))
	mustSubmit(t, one, "UpdateAsset", args("car", "200"), endorsingAt("Org1MSP"))
	mustSubmit(t, one, "TransferAsset", args("car", "Bob", "Org2MSP"), endorsingAt("Org1MSP"))
	mustFail(t, one, "ENDORSEMENT_POLICY_FAILURE", "UpdateAsset", args("car", "300"), endorsingAt("Org1MSP"))
	eventuallyEvaluates(t, two, `{"ID":"car","Value":200,"Owner":"Bob","OwnerOrg":"Org2MSP"}`, "ReadAsset", args("car"))
	mustSubmit(t, two, "UpdateAsset", args("car", "300"), endorsingAt("Org2MSP"))
	mustSubmit(t, two, "DeleteAsset", args("car"), endorsingAt("Org2MSP"))
}

func TestSampleSecuredAgreement(t *testing.T) {
	_, contracts := startSample(t, "asset-transfer-secured-agreement/chaincode-go", "--policy", eitherOfTwo)
	seller, buyer := contracts[0], contracts[1]
	properties := `{"object_type":"asset_properties","color":"blue","size":35,"salt":"a6b9"}`
	price := `{"asset_id":"%s","trade_id":"t1","price":%d}`
	own, others := endorsingAt("Org1MSP"), endorsingAt("Org2MSP")
	id := mustSubmit(t, seller, "CreateAsset", args("A car"), transient("asset_properties", properties), own)
	expect(t, "the properties", evaluate(t, seller, "GetAssetPrivateProperties", id), properties)
	mustFail(t, seller, "ENDORSEMENT_POLICY_FAILURE", "ChangePublicDescription", args(id, "A boat"), others)
	mustSubmit(t, seller, "ChangePublicDescription", args(id, "A car for sale"), own)
	eventuallyEvaluates(t, buyer, "true", "VerifyAssetProperties", args(id), transient("asset_properties", properties))
	mustFail(t, buyer, "cannot update the description", "ChangePublicDescription", args(id, "Mine"), others)

	mustSubmit(t, seller, "AgreeToSell", args(id), transient("asset_price", fmt.Sprintf(price, id, 110)), own)
	mustSubmit(t, buyer, "AgreeToBuy", args(id), others, client.WithTransient(map[string][]byte{
		"asset_price": []byte(fmt.Sprintf(price, id, 100)), "asset_properties": []byte(properties),
	}))
	expect(t, "the bid", evaluate(t, buyer, "GetAssetBidPrice", id), fmt.Sprintf(price, id, 100))
	if result, err := buyer.EvaluateTransaction("GetAssetSalesPrice", id); err == nil {
		t.Fatalf("the buyer read the seller's price: %s", result)
	}
	both := endorsingAt("Org1MSP", "Org2MSP")
	mustFail(t, seller, "hasn't agreed", "TransferAsset", args(id, "Org2MSP"), transient("asset_price", fmt.Sprintf(price, id, 110)), both)
	mustSubmit(t, seller, "AgreeToSell", args(id), transient("asset_price", fmt.Sprintf(price, id, 100)), own)
	eventually(t, func() error {
		_, err := seller.Submit("TransferAsset", args(id, "Org2MSP"), transient("asset_price", fmt.Sprintf(price, id, 100)), both)
		return err
	})
	eventuallyEvaluates(t, buyer, properties, "GetAssetPrivateProperties", args(id))
	if result, err := seller.EvaluateTransaction("GetAssetPrivateProperties", id); err == nil {
		t.Fatalf("the seller still has the properties: %s", result)
	}
	mustFail(t, seller, "cannot update the description", "ChangePublicDescription", args(id, "Mine"), own)
	mustSubmit(t, buyer, "ChangePublicDescription", args(id, "Not for sale"), others)
	var history []struct{ Record struct{ OwnerOrg string } }
	if err := json.Unmarshal([]byte(evaluate(t, buyer, "QueryAssetHistory", id)), &history); err != nil || len(history) != 4 {
		t.Fatalf("the history is %v, %v", history, err)
	}
	expect(t, "the owner", history[0].Record.OwnerOrg, "Org2MSP")
}
