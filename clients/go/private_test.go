package clients

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hyperledger/fabric-gateway/pkg/client"
	"github.com/hyperledger/fabric-protos-go-apiv2/common"
	"github.com/hyperledger/fabric-protos-go-apiv2/msp"
	"github.com/hyperledger/fabric-protos-go-apiv2/peer"
	"google.golang.org/protobuf/proto"
)

// A call whose process is killed must have failed after this long.
const failsWithin = 5 * time.Second

// A collection of the first two organisations.
func shared() *peer.CollectionConfigPackage {
	policy := &common.SignaturePolicyEnvelope{}
	var rules []*common.SignaturePolicy
	for index, name := range []string{"Org1MSP", "Org2MSP"} {
		role, err := proto.Marshal(&msp.MSPRole{MspIdentifier: name, Role: msp.MSPRole_MEMBER})
		if err != nil {
			panic(err)
		}
		policy.Identities = append(policy.Identities,
			&msp.MSPPrincipal{PrincipalClassification: msp.MSPPrincipal_ROLE, Principal: role})
		rules = append(rules, &common.SignaturePolicy{Type: &common.SignaturePolicy_SignedBy{SignedBy: int32(index)}})
	}
	policy.Rule = &common.SignaturePolicy{Type: &common.SignaturePolicy_NOutOf_{
		NOutOf: &common.SignaturePolicy_NOutOf{N: 1, Rules: rules},
	}}
	return &peer.CollectionConfigPackage{Config: []*peer.CollectionConfig{{
		Payload: &peer.CollectionConfig_StaticCollectionConfig{StaticCollectionConfig: &peer.StaticCollectionConfig{
			Name: "shared", RequiredPeerCount: 0, MaximumPeerCount: 1,
			MemberOrgsPolicy: &peer.CollectionPolicyConfig{
				Payload: &peer.CollectionPolicyConfig_SignaturePolicy{SignaturePolicy: policy},
			},
		}},
	}}}
}

// Follows pages to the last one, and returns their sizes.
func pages(t *testing.T, page func(bookmark string) string) string {
	t.Helper()
	sizes, bookmark := []string{}, ""
	for len(sizes) < 100 {
		size, next, _ := strings.Cut(page(bookmark), " ")
		sizes = append(sizes, size)
		if next == "" {
			return strings.Join(sizes, " ")
		}
		bookmark = next
	}
	t.Fatalf("the pages do not end: %v", sizes)
	return ""
}

// Pages, and histories with deletions. The rows are those of useAssets.
func usePages(t *testing.T, contract *client.Contract) {
	t.Helper()
	found := pages(t, func(bookmark string) string {
		return evaluate(t, contract, "Page", "m00000", "m02000", "450", bookmark)
	})
	expect(t, "pages", found, "450 450 450 450 200")
	// A full last page has a bookmark if a key follows it.
	expect(t, "a page", evaluate(t, contract, "Page", "m00000", "m00100", "100", ""), "100 ")
	expect(t, "a page", evaluate(t, contract, "Page", "m00000", "m00100", "99", ""), "99 m00099")
	expect(t, "a page of an index", evaluate(t, contract, "OwnedPage", "Ada", "5", ""), "2 ")
	if page := evaluate(t, contract, "OwnedPage", "Ada", "1", ""); !strings.HasPrefix(page, "1 00") {
		t.Fatalf("the page of an index is %q", page)
	}

	submit(t, contract, "Delete", "boat")
	var changes []struct {
		Owner   string
		Deleted bool
	}
	if err := json.Unmarshal([]byte(evaluate(t, contract, "History", "boat")), &changes); err != nil {
		t.Fatal(err)
	}
	if len(changes) != 2 || !changes[0].Deleted || changes[1].Deleted || changes[1].Owner != "Ada" {
		t.Fatalf("the history of the boat is %v", changes)
	}
}

// Every call of private data. The client's organisation is a member of the collection.
func usePrivateData(t *testing.T, contract *client.Contract) {
	t.Helper()
	put := func(id, value string) {
		t.Helper()
		_, err := contract.Submit("PutPrivate", client.WithArguments("shared", id),
			client.WithTransient(map[string][]byte{"value": []byte(value)}))
		if err != nil {
			t.Fatalf("PutPrivate: %+v", err)
		}
	}
	for number := 0; number < 3; number++ {
		put(fmt.Sprintf("secret%d", number), fmt.Sprintf("value %d", number))
	}
	get := func(id string) string { return evaluate(t, contract, "GetPrivate", "shared", id) }
	hash := func(id string) string { return evaluate(t, contract, "GetPrivateHash", "shared", id) }
	expect(t, "a private value", get("secret1"), "value 1")
	expect(t, "its hash", hash("secret1"), fmt.Sprintf("%x", sha256.Sum256([]byte("value 1"))))
	expect(t, "a private range", evaluate(t, contract, "CountPrivate", "shared", "secret", "secreu"), "3")
	expect(t, "several at once", evaluate(t, contract, "GetPrivateMany", "shared", `["secret0","none","secret2"]`), "2")

	// More rows than one batch of results takes, and a purge in the batch of writes.
	submit(t, contract, "PutPrivateMany", "shared", "p", "250", "secret0")
	expect(t, "a private range", evaluate(t, contract, "CountPrivate", "shared", "p", "q"), "250")
	expect(t, "a purged value", get("secret0")+hash("secret0"), "")
	submit(t, contract, "DeletePrivate", "shared", "secret1")
	expect(t, "a deleted value", get("secret1")+hash("secret1"), "")
	submit(t, contract, "PurgePrivate", "shared", "secret2")
	expect(t, "a purged value", get("secret2")+hash("secret2"), "")
	expect(t, "a private range", evaluate(t, contract, "CountPrivate", "shared", "secret", "secreu"), "0")
	if _, err := contract.EvaluateTransaction("GetPrivate", "unknown", "secret1"); err == nil {
		t.Fatal("an unknown collection has a value")
	}
}

// A chaincode whose process is killed in the middle of a transaction fails it at once, and the next try succeeds.
func killInTheMiddle(t *testing.T, contract *client.Contract, kill func()) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "hangs")
	failed := make(chan error)
	go func() {
		_, err := contract.SubmitTransaction("Hang", "hanging", file)
		failed <- err
	}()
	eventually(t, func() error {
		_, err := os.Stat(file)
		return err
	})
	kill()
	select {
	case err := <-failed:
		if err == nil || !strings.Contains(fmt.Sprintf("%+v", err), "assets") {
			t.Fatalf("the transaction ended with %+v", err)
		}
	case <-time.After(failsWithin):
		t.Fatal("the client does not learn that the chaincode has ended")
	}
	eventually(t, func() error {
		_, err := contract.SubmitTransaction("Hang", "hanging", file)
		return err
	})
}
