package clients

import (
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Enough to pass every limit of a thousand on one connection; `cargo xtask calls` makes many more.
const (
	callsInTests = 3000
	atOnce       = 64
)

func TestCallsOnOneConnectionAreAllAnswered(t *testing.T) {
	calls := int64(callsInTests)
	if text := os.Getenv("CALLS"); text != "" {
		count, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		calls = count
	}
	contract := start(t).contract(t)
	if _, err := contract.SubmitTransaction("CreateAsset", "asset-calls", "blue", "5", "Tomoko", "300"); err != nil {
		t.Fatal(err)
	}
	var begun, lost atomic.Int64
	var work sync.WaitGroup
	begin := time.Now()
	for range atOnce {
		work.Go(func() {
			for begun.Add(1) <= calls {
				if _, err := contract.EvaluateTransaction("ReadAsset", "asset-calls"); err != nil && lost.Add(1) <= 3 {
					t.Error(err)
				}
			}
		})
	}
	work.Wait()
	t.Logf("go: %d calls, %d lost, %v", calls, lost.Load(), time.Since(begin))
}
