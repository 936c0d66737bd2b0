package main

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"

	"github.com/hyperledger/fabric-chaincode-go/v2/shim"
	"github.com/hyperledger/fabric-protos-go-apiv2/peer"
)

const (
	overdraftFee      = 1
	customerBytesMax  = 64
	nameBytesMax      = 256
	loadCustomersMax  = 50_000
	loadBytesMax      = 64 << 20
	recordBytesMax    = 64 << 10
	balanceBytes      = 8
	shownCharacters   = 64
	checkingPrefix    = "checking_"
	savingsPrefix     = "savings_"
	namePrefix        = "name_"
	functionNotFound  = "contract smallbank has no function named %s"
	wrongArgumentText = "argument %s of %s %s"
)

// smallBank is the contract.
type smallBank struct{}

// Init does nothing: `load` and `create_account` make the accounts.
func (smallBank) Init(shim.ChaincodeStubInterface) *peer.Response {
	return shim.Success(nil)
}

// Invoke runs one function.
func (smallBank) Invoke(stub shim.ChaincodeStubInterface) *peer.Response {
	name, arguments := stub.GetFunctionAndParameters()
	payload, err := invoke(stub, call{name, arguments})
	if err != nil {
		return shim.Error(err.Error())
	}
	return shim.Success(payload)
}

func invoke(stub shim.ChaincodeStubInterface, call call) ([]byte, error) {
	switch call.function {
	case "send_payment":
		return sendPayment(stub, call)
	case "deposit_checking":
		return depositChecking(stub, call)
	case "transact_savings":
		return transactSavings(stub, call)
	case "write_check":
		return writeCheck(stub, call)
	case "amalgamate":
		return amalgamate(stub, call)
	case "balance":
		return balance(stub, call)
	case "query":
		return query(stub, call)
	case "create_account":
		return createAccount(stub, call)
	case "load":
		return load(stub, call)
	default:
		return nil, fmt.Errorf(functionNotFound, shown(call.function))
	}
}

// call is a function with its arguments.
type call struct {
	function  string
	arguments []string
}

func (call call) take(names ...string) error {
	if len(call.arguments) != len(names) {
		return fmt.Errorf("wrong number of arguments: %s takes %d, %d were given",
			call.function, len(names), len(call.arguments))
	}
	return nil
}

func (call call) wrong(name, problem string) error {
	return fmt.Errorf(wrongArgumentText, name, call.function, problem)
}

func (call call) integer(index int, name string) (int64, error) {
	number, err := strconv.ParseInt(call.arguments[index], 10, 64)
	if err != nil {
		return 0, call.wrong(name, fmt.Sprintf("is not an integer in range: %q", shown(call.arguments[index])))
	}
	return number, nil
}

// natural is an integer that must not be negative.
func (call call) natural(index int, name string) (int64, error) {
	number, err := call.integer(index, name)
	if err == nil && number < 0 {
		return 0, call.wrong(name, fmt.Sprintf("must not be negative: %d", number))
	}
	return number, err
}

func (call call) count(index int, name string, least, most int64) (int64, error) {
	number, err := call.integer(index, name)
	if err == nil && (number < least || number > most) {
		return 0, call.wrong(name, fmt.Sprintf("must be from %d to %d, not %d", least, most, number))
	}
	return number, err
}

// account is a row as the transaction found it, with the balance that it is to have.
type account struct {
	key     string
	record  []byte
	balance int64
}

func key(prefix, customer string) (string, error) {
	if len(customer) < 1 || len(customer) > customerBytesMax {
		return "", fmt.Errorf("a customer's id has 1 to %d bytes, not %d", customerBytesMax, len(customer))
	}
	return prefix + customer, nil
}

// row is the kind of an account, and its customer.
type row struct{ prefix, customer string }

// read returns accounts that must all exist.
func read(stub shim.ChaincodeStubInterface, rows ...row) ([]account, error) {
	keys := make([]string, len(rows))
	for index, row := range rows {
		key, err := key(row.prefix, row.customer)
		if err != nil {
			return nil, err
		}
		keys[index] = key
	}
	records, err := values(stub, keys)
	if err != nil {
		return nil, err
	}
	accounts := make([]account, len(keys))
	for index, record := range records {
		if len(record) == 0 {
			return nil, fmt.Errorf("there is no account %s", shown(keys[index]))
		}
		if len(record) < balanceBytes {
			return nil, fmt.Errorf("the record of an account is too short: %s", shown(keys[index]))
		}
		balance := int64(binary.LittleEndian.Uint64(record))
		accounts[index] = account{keys[index], record, balance}
	}
	return accounts, nil
}

func values(stub shim.ChaincodeStubInterface, keys []string) ([][]byte, error) {
	if len(keys) == 1 {
		value, err := stub.GetState(keys[0])
		return [][]byte{value}, err
	}
	return stub.GetMultipleStates(keys...)
}

func (account *account) add(amount int64) error {
	sum, err := sum(account.balance, amount)
	if err != nil {
		return fmt.Errorf("the balance of account %s would not fit", shown(account.key))
	}
	account.balance = sum
	return nil
}

// write records the balance; the padding of the record stays. All writes of a transaction leave together.
func (account *account) write(stub shim.ChaincodeStubInterface) error {
	binary.LittleEndian.PutUint64(account.record, uint64(account.balance))
	return stub.PutState(account.key, account.record)
}

func writeAll(stub shim.ChaincodeStubInterface, accounts ...*account) error {
	if len(accounts) > 1 {
		stub.StartWriteBatch()
	}
	for _, account := range accounts {
		if err := account.write(stub); err != nil {
			return err
		}
	}
	return nil
}

var errOverflow = errors.New("overflow")

func sum(a, b int64) (int64, error) {
	if (b > 0 && a > math.MaxInt64-b) || (b < 0 && a < math.MinInt64-b) {
		return 0, errOverflow
	}
	return a + b, nil
}

func total(a, b *account) (int64, error) {
	both, err := sum(a.balance, b.balance)
	if err != nil {
		return 0, fmt.Errorf("the balance of account %s would not fit", shown(a.key))
	}
	return both, nil
}

func sendPayment(stub shim.ChaincodeStubInterface, call call) ([]byte, error) {
	if err := call.take("amount", "destination", "source"); err != nil {
		return nil, err
	}
	amount, err := call.natural(0, "amount")
	if err != nil {
		return nil, err
	}
	destination, source := call.arguments[1], call.arguments[2]
	accounts, err := read(stub, row{checkingPrefix, source}, row{checkingPrefix, destination})
	if err != nil {
		return nil, err
	}
	from, to := &accounts[0], &accounts[1]
	if from.balance < amount {
		return nil, fmt.Errorf("the checking account of %s has %d, less than %d", shown(source), from.balance, amount)
	}
	if source != destination {
		if err := from.add(-amount); err != nil {
			return nil, err
		}
		if err := to.add(amount); err != nil {
			return nil, err
		}
	}
	return nil, writeAll(stub, from, to)
}

func depositChecking(stub shim.ChaincodeStubInterface, call call) ([]byte, error) {
	if err := call.take("amount", "customer"); err != nil {
		return nil, err
	}
	amount, err := call.natural(0, "amount")
	if err != nil {
		return nil, err
	}
	accounts, err := read(stub, row{checkingPrefix, call.arguments[1]})
	if err != nil {
		return nil, err
	}
	if err := accounts[0].add(amount); err != nil {
		return nil, err
	}
	return nil, writeAll(stub, &accounts[0])
}

// transactSavings is a deposit, or a withdrawal when the amount is negative.
func transactSavings(stub shim.ChaincodeStubInterface, call call) ([]byte, error) {
	if err := call.take("amount", "customer"); err != nil {
		return nil, err
	}
	amount, err := call.integer(0, "amount")
	if err != nil {
		return nil, err
	}
	customer := call.arguments[1]
	accounts, err := read(stub, row{savingsPrefix, customer})
	if err != nil {
		return nil, err
	}
	if err := accounts[0].add(amount); err != nil {
		return nil, err
	}
	if accounts[0].balance < 0 {
		return nil, fmt.Errorf("the savings account of %s has less than is to be withdrawn", shown(customer))
	}
	return nil, writeAll(stub, &accounts[0])
}

func writeCheck(stub shim.ChaincodeStubInterface, call call) ([]byte, error) {
	if err := call.take("amount", "customer"); err != nil {
		return nil, err
	}
	amount, err := call.natural(0, "amount")
	if err != nil {
		return nil, err
	}
	customer := call.arguments[1]
	accounts, err := read(stub, row{savingsPrefix, customer}, row{checkingPrefix, customer})
	if err != nil {
		return nil, err
	}
	savings, checking := &accounts[0], &accounts[1]
	both, err := total(savings, checking)
	if err != nil {
		return nil, err
	}
	if err := checking.add(-amount); err != nil {
		return nil, err
	}
	if both < amount {
		if err := checking.add(-overdraftFee); err != nil {
			return nil, err
		}
	}
	return nil, writeAll(stub, checking)
}

// amalgamate moves all that the source has to the checking account of the destination.
func amalgamate(stub shim.ChaincodeStubInterface, call call) ([]byte, error) {
	if err := call.take("destination", "source"); err != nil {
		return nil, err
	}
	destination, source := call.arguments[0], call.arguments[1]
	accounts, err := read(stub,
		row{savingsPrefix, source}, row{checkingPrefix, source}, row{checkingPrefix, destination})
	if err != nil {
		return nil, err
	}
	savings, checking, to := &accounts[0], &accounts[1], &accounts[2]
	both, err := total(savings, checking)
	if err != nil {
		return nil, err
	}
	savings.balance = 0
	if source == destination {
		to.balance = both
		return nil, writeAll(stub, savings, to)
	}
	checking.balance = 0
	if err := to.add(both); err != nil {
		return nil, err
	}
	return nil, writeAll(stub, savings, checking, to)
}

// balance is the sum of both accounts, in decimal.
func balance(stub shim.ChaincodeStubInterface, call call) ([]byte, error) {
	if err := call.take("customer"); err != nil {
		return nil, err
	}
	customer := call.arguments[0]
	accounts, err := read(stub, row{savingsPrefix, customer}, row{checkingPrefix, customer})
	if err != nil {
		return nil, err
	}
	both, err := total(&accounts[0], &accounts[1])
	if err != nil {
		return nil, err
	}
	return strconv.AppendInt(nil, both, 10), nil
}

// customerRecord is a customer as query answers.
type customerRecord struct {
	CustomID        string `json:"CustomId"`
	CustomName      string `json:"CustomName"`
	SavingsBalance  int64  `json:"SavingsBalance"`
	CheckingBalance int64  `json:"CheckingBalance"`
}

func query(stub shim.ChaincodeStubInterface, call call) ([]byte, error) {
	if err := call.take("customer"); err != nil {
		return nil, err
	}
	customer := call.arguments[0]
	accounts, err := read(stub, row{savingsPrefix, customer}, row{checkingPrefix, customer})
	if err != nil {
		return nil, err
	}
	name, err := stub.GetState(namePrefix + customer)
	if err != nil {
		return nil, err
	}
	return json.Marshal(customerRecord{customer, string(name), accounts[0].balance, accounts[1].balance})
}

func createAccount(stub shim.ChaincodeStubInterface, call call) ([]byte, error) {
	if err := call.take("customer", "name", "checking", "savings"); err != nil {
		return nil, err
	}
	customer, name := call.arguments[0], call.arguments[1]
	checking, err := call.natural(2, "checking")
	if err != nil {
		return nil, err
	}
	savings, err := call.natural(3, "savings")
	if err != nil {
		return nil, err
	}
	if len(name) > nameBytesMax {
		return nil, call.wrong("name", fmt.Sprintf("may have %d bytes, not %d", nameBytesMax, len(name)))
	}
	checkingKey, err := key(checkingPrefix, customer)
	if err != nil {
		return nil, err
	}
	found, err := stub.GetState(checkingKey)
	if err != nil {
		return nil, err
	}
	if found != nil {
		return nil, fmt.Errorf("customer %s exists already", shown(customer))
	}
	stub.StartWriteBatch()
	if err := stub.PutState(checkingKey, record(checking, balanceBytes)); err != nil {
		return nil, err
	}
	if err := stub.PutState(savingsPrefix+customer, record(savings, balanceBytes)); err != nil {
		return nil, err
	}
	if name != "" {
		return nil, stub.PutState(namePrefix+customer, []byte(name))
	}
	return nil, nil
}

// load creates customers and answers how many. It reads nothing and replaces what is there.
func load(stub shim.ChaincodeStubInterface, call call) ([]byte, error) {
	bytes := int64(balanceBytes)
	if len(call.arguments) != 5 {
		if err := call.take("start", "count", "checking", "savings"); err != nil {
			return nil, err
		}
	}
	start, err := call.count(0, "start", 0, math.MaxInt64-loadCustomersMax)
	if err != nil {
		return nil, err
	}
	count, err := call.count(1, "count", 1, loadCustomersMax)
	if err != nil {
		return nil, err
	}
	checking, err := call.natural(2, "checking")
	if err != nil {
		return nil, err
	}
	savings, err := call.natural(3, "savings")
	if err != nil {
		return nil, err
	}
	if len(call.arguments) == 5 {
		most := min(int64(recordBytesMax), loadBytesMax/2/count)
		if bytes, err = call.count(4, "recordBytes", balanceBytes, most); err != nil {
			return nil, err
		}
	}
	stub.StartWriteBatch()
	for number := start; number < start+count; number++ {
		customer := strconv.FormatInt(number, 10)
		if err := stub.PutState(checkingPrefix+customer, record(checking, bytes)); err != nil {
			return nil, err
		}
		if err := stub.PutState(savingsPrefix+customer, record(savings, bytes)); err != nil {
			return nil, err
		}
	}
	return strconv.AppendInt(nil, count, 10), nil
}

// record is a row of this many bytes that starts with a balance.
func record(balance, bytes int64) []byte {
	record := make([]byte, bytes)
	binary.LittleEndian.PutUint64(record, uint64(balance))
	return record
}

// shown is text as an error message repeats it.
func shown(text string) string {
	characters := 0
	for index := range text {
		if characters == shownCharacters {
			return text[:index] + "…"
		}
		characters++
	}
	return text
}
