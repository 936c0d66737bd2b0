// Fabric's older SDK finds peers, orderers and endorsers by discovery, and does what its applications do.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { readFileSync, readdirSync } from 'node:fs';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { DefaultEventHandlerStrategies, Gateway, Wallets } from 'fabric-network';
import { Network, channel } from '../node/src/network.js';

const only = (folder) => readFileSync(join(folder, readdirSync(folder)[0]), 'utf8');

// The channel's configuration names the orderer's port, so that it must be known before the network is made.
async function freePort() {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address();
  server.close();
  await once(server, 'close');
  return port;
}

let network;
let gateway;
let contract;

before(async () => {
  network = await Network.start({ policy: 'all', orderer: await freePort() });
  const organization = network.organization(1);
  const msp = join(organization, 'users', 'User1@org1.example.com', 'msp');
  const wallet = await Wallets.newInMemoryWallet();
  await wallet.put('user', {
    type: 'X.509',
    mspId: 'Org1MSP',
    credentials: { certificate: only(join(msp, 'signcerts')), privateKey: only(join(msp, 'keystore')) },
  });
  const profile = JSON.parse(readFileSync(join(network.directory, 'profiles', 'connection-org1.json')));
  // What discovery must find.
  const own = 'peer0.org1.example.com';
  profile.peers = { [own]: profile.peers[own] };
  delete profile.orderers;
  delete profile.channels;
  profile.organizations = { org1: profile.organizations.org1 ?? profile.organizations.Org1 };
  gateway = new Gateway();
  await gateway.connect(profile, {
    wallet,
    identity: 'user',
    discovery: { enabled: true, asLocalhost: true },
    // The next transaction is endorsed at every peer, and this SDK does not repeat one for which a peer lags behind.
    eventHandlerOptions: { strategy: DefaultEventHandlerStrategies.NETWORK_SCOPE_ALLFORTX },
  });
  contract = (await gateway.getNetwork(channel)).getContract('basic');
});

after(async () => {
  gateway?.disconnect();
  await network?.stop();
});

test('discovery finds every peer and the orderer', async () => {
  const found = (await gateway.getNetwork(channel)).getChannel();
  const names = (all) => all.map((one) => one.name.replace(/:.*/, '')).sort();
  const peers = [1, 2, 3].map((number) => `peer0.org${number}.example.com`);
  assert.deepEqual(names(found.getEndorsers()).filter((name) => peers.includes(name)), peers);
  assert.deepEqual(names(found.getCommitters()), ['orderer.example.com']);
});

test('transactions are endorsed by all organisations, committed, and seen by listeners', async () => {
  const net = await gateway.getNetwork(channel);
  // Resolves with what a listener was told first.
  const told = (listen) => new Promise((resolve) => listen(async (event) => resolve(event)));
  const event = told((listener) => contract.addContractListener(listener));
  const block = told((listener) => net.addBlockListener(listener, { type: 'filtered' }));
  await contract.submitTransaction('CreateAsset', 'old-sdk', 'blue', '5', 'Tomoko', '300');
  assert.equal((await event).eventName, 'CreateAsset');
  assert.ok((await block).getTransactionEvents().length > 0);

  const transaction = contract.createTransaction('TransferAsset');
  const committed = new Promise((resolve, reject) => {
    const listener = (error, event) => (error ? reject(error) : resolve(event));
    void net.addCommitListener(listener, net.getChannel().getEndorsers('Org2MSP'), transaction.getTransactionId());
  });
  assert.equal((await transaction.submit('old-sdk', 'Ada')).toString(), 'Tomoko');
  assert.ok((await committed).isValid);
  const read = JSON.parse(await contract.evaluateTransaction('ReadAsset', 'old-sdk'));
  assert.equal(read.Owner, 'Ada');
  await assert.rejects(contract.submitTransaction('ReadAsset', 'absent'), /absent does not exist/);
});

test('system contracts answer', async () => {
  const net = await gateway.getNetwork(channel);
  const info = await net.getContract('qscc').evaluateTransaction('GetChainInfo', channel);
  assert.ok(info.length > 0);
  const block = await net.getContract('qscc').evaluateTransaction('GetBlockByNumber', channel, '0');
  assert.ok(block.length > info.length);
  assert.ok((await net.getContract('cscc').evaluateTransaction('GetChannels')).includes(channel));
  await assert.rejects(net.getContract('qscc').evaluateTransaction('GetBlockByNumber', channel, '1000000'));
});
