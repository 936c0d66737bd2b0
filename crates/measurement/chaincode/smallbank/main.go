// SmallBank as a chaincode in Go. It keeps the same rows as Heddle's native contract, gives the same answers, and asks the
// peer at most twice in a transaction: once for all accounts that it reads, once for all that it writes.
package main

import (
	"io"
	"log"
	"os"

	"github.com/hyperledger/fabric-chaincode-go/v2/shim"
)

func main() {
	// The benchmark holds the other end of the standard input: the chaincode ends with it.
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	server := shim.ChaincodeServer{
		CCID:     os.Getenv("CORE_CHAINCODE_ID_NAME"),
		Address:  os.Getenv("CHAINCODE_SERVER_ADDRESS"),
		CC:       smallBank{},
		TLSProps: shim.TLSProperties{Disabled: true},
	}
	log.Fatal(server.Start())
}
