// A first client: creates an asset, reads it back, and prints the block that holds it.
// Run it with: npm install && npm start
import * as crypto from 'node:crypto';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import * as grpc from '@grpc/grpc-js';
import { connect, hash, signers } from '@hyperledger/fabric-gateway';

const network = JSON.parse(readFileSync(new URL('network.json', import.meta.url)));
const organization = new URL(`${network.organization}/`, import.meta.url).pathname;
const user = join(organization, 'users', 'User1@org1.example.com', 'msp');
const only = (folder) => readFileSync(join(folder, readdirSync(folder)[0]));

const credentials = network.tls
  ? grpc.credentials.createSsl(readFileSync(join(organization, 'peers', network.peerName, 'tls', 'ca.crt')))
  : grpc.credentials.createInsecure();
const client = new grpc.Client(network.address, credentials, {
  'grpc.ssl_target_name_override': network.peerName,
});
const gateway = connect({
  client,
  identity: { mspId: network.mspId, credentials: only(join(user, 'signcerts')) },
  signer: signers.newPrivateKeySigner(crypto.createPrivateKey(only(join(user, 'keystore')))),
  hash: hash.sha256,
});

try {
  const contract = gateway.getNetwork(network.channel).getContract('basic');
  const id = `asset-${Date.now()}`;
  const submitted = await contract.submitAsync('CreateAsset', {
    arguments: [id, 'blue', '5', 'Tomoko', '300'],
  });
  const status = await submitted.getStatus();
  console.log(`${submitted.getTransactionId()} is in block ${status.blockNumber}, code ${status.code}`);
  const asset = await contract.evaluateTransaction('ReadAsset', id);
  console.log(new TextDecoder().decode(asset));
} finally {
  gateway.close();
  client.close();
}
