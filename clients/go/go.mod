module heddle/clients

go 1.25.0

require (
	github.com/hyperledger/fabric-admin-sdk v0.2.0
	github.com/hyperledger/fabric-config v0.3.0
	github.com/hyperledger/fabric-gateway v1.11.0
	github.com/hyperledger/fabric-protos-go-apiv2 v0.3.7
	google.golang.org/grpc v1.81.0
	google.golang.org/protobuf v1.36.11
)

require (
	github.com/Knetic/govaluate v3.0.0+incompatible // indirect
	github.com/miekg/pkcs11 v1.1.2 // indirect
	golang.org/x/net v0.54.0 // indirect
	golang.org/x/sys v0.44.0 // indirect
	golang.org/x/text v0.37.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260226221140-a57be14db171 // indirect
)
