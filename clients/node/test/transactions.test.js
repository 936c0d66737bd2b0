import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import * as crypto from 'node:crypto';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import * as grpc from '@grpc/grpc-js';
import { CommitError, EndorseError, GatewayError, connect, hash } from '@hyperledger/fabric-gateway';
import { peer } from '@hyperledger/fabric-protos';
import { Network, channel, newAsset, text } from '../src/network.js';

const { TxValidationCode } = peer;

let network;
before(async () => {
  network = await Network.start();
});
after(() => network?.stop());

const create = (contract, id) => contract.submitTransaction('CreateAsset', id, 'blue', '5', 'Tomoko', '300');

test('a submitted asset is read back through every organisation', async () => {
  const id = newAsset();
  await create(network.contract(1), id);
  for (const number of [1, 2, 3]) {
    const contract = network.contract(number);
    // Another organisation's peer may be a block behind.
    let asset;
    for (let attempt = 0; asset === undefined; attempt += 1) {
      asset = await contract.evaluateTransaction('ReadAsset', id).catch((error) => {
        if (attempt === 100) throw error;
        return new Promise((resolve) => setTimeout(resolve, 20));
      });
    }
    assert.deepEqual(JSON.parse(text(asset)), {
      ID: id,
      Color: 'blue',
      Size: 5,
      Owner: 'Tomoko',
      AppraisedValue: 300,
    });
  }
});

test('a transfer returns the old owner before it is committed', async () => {
  const contract = network.contract();
  const id = newAsset();
  await create(contract, id);
  const submitted = await contract.submitAsync('TransferAsset', { arguments: [id, 'Saptha'] });
  assert.equal(text(submitted.getResult()), 'Tomoko');
  const status = await submitted.getStatus();
  assert.equal(status.successful, true);
  assert.equal(status.code, TxValidationCode.VALID);
  assert.ok(status.blockNumber > 0n);
  assert.equal(JSON.parse(text(await contract.evaluateTransaction('ReadAsset', id))).Owner, 'Saptha');
});

test('all assets are listed in the order of their keys', async () => {
  const contract = network.contract();
  await contract.submitTransaction('InitLedger');
  const ids = JSON.parse(text(await contract.evaluateTransaction('GetAllAssets'))).map((asset) => asset.ID);
  assert.ok(['asset1', 'asset2', 'asset3', 'asset4', 'asset5', 'asset6'].every((id) => ids.includes(id)));
  assert.deepEqual(ids, [...ids].sort());
});

test('an application error reaches the client with its text and its endorser', async () => {
  const contract = network.contract();
  await assert.rejects(contract.submitTransaction('UpdateAsset', 'asset70', 'blue', '5', 'Tomoko', '300'), (error) => {
    assert.ok(error instanceof EndorseError);
    assert.equal(error.code, grpc.status.ABORTED);
    assert.ok(error.transactionId.length === 64);
    assert.equal(error.details.length, 1);
    assert.equal(error.details[0].mspId, 'Org1MSP');
    assert.match(error.details[0].message, /asset70 does not exist/);
    return true;
  });
  await assert.rejects(contract.evaluateTransaction('ReadAsset', 'asset70'), (error) => {
    assert.ok(error instanceof GatewayError);
    assert.equal(error.code, grpc.status.UNKNOWN);
    assert.match(error.details[0].message, /asset70 does not exist/);
    return true;
  });
});

test('an endorsement that cannot be had says why', async () => {
  const { contract, other } = {
    contract: network.contract(),
    other: network.contract(1, 'no-such-contract'),
  };
  const proposal = { arguments: [newAsset(), 'blue', '5', 'Tomoko', '300'] };
  await assert.rejects(
    contract.submit('CreateAsset', { ...proposal, endorsingOrganizations: ['ForeignMSP'] }),
    (error) => error instanceof EndorseError && error.code === grpc.status.UNAVAILABLE,
  );
  await assert.rejects(
    other.submit('CreateAsset', proposal),
    (error) => error instanceof EndorseError && error.code === grpc.status.FAILED_PRECONDITION,
  );
  await assert.rejects(
    network.gateway(1).getNetwork('otherchannel').getContract('basic').evaluateTransaction('GetAllAssets'),
    (error) => error instanceof GatewayError && error.code === grpc.status.UNAVAILABLE,
  );
});

test('a foreign certificate is refused', async () => {
  const { signer } = network.identity(1);
  const identity = { mspId: 'Org1MSP', credentials: network.identity(2).identity.credentials };
  const contract = network.gateway(1, { identity, signer }).getNetwork(channel).getContract('basic');
  await assert.rejects(
    contract.evaluateTransaction('GetAllAssets'),
    (error) => error instanceof GatewayError && error.code === grpc.status.FAILED_PRECONDITION,
  );
});

test('a read of a version that has moved on is reported as an MVCC conflict', async () => {
  const contract = network.contract();
  const id = newAsset();
  await create(contract, id);
  const endorse = (owner) => contract.newProposal('TransferAsset', { arguments: [id, owner] }).endorse();
  const [first, second] = [await endorse('Anna'), await endorse('Bob')];
  const won = await (await first.submit()).getStatus();
  const lost = await (await second.submit()).getStatus();
  assert.equal(won.code, TxValidationCode.VALID);
  assert.equal(lost.successful, false);
  assert.equal(lost.code, TxValidationCode.MVCC_READ_CONFLICT);

  const third = await endorse('Carol');
  await create(contract, newAsset());
  await contract.submitTransaction('TransferAsset', id, 'Dave');
  await assert.rejects(
    third.submit().then(async (commit) => {
      const status = await commit.getStatus();
      throw Object.assign(new Error('conflict'), { code: status.code });
    }),
    { code: TxValidationCode.MVCC_READ_CONFLICT },
  );
  await assert.rejects(
    Promise.all(['Eve', 'Frank'].map((owner) => contract.submitTransaction('TransferAsset', id, owner))),
    (error) => error instanceof CommitError && error.code === TxValidationCode.MVCC_READ_CONFLICT,
  );
});

test('a transaction signed away from the client commits', async () => {
  const msp = join(network.organization(1), 'users', 'User1@org1.example.com', 'msp', 'keystore');
  const key = crypto.createPrivateKey(readFileSync(join(msp, readdirSync(msp)[0])));
  // The offline signer sees digests only; low S is what Fabric's rules ask for.
  const order = BigInt('0xffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632551');
  const sign = (message) => {
    const raw = crypto.sign('sha256', message, { key, dsaEncoding: 'ieee-p1363' });
    const r = BigInt(`0x${raw.subarray(0, 32).toString('hex')}`);
    const s = BigInt(`0x${raw.subarray(32).toString('hex')}`);
    return derSignature(r, s > order / 2n ? order - s : s);
  };
  const gateway = connect({ client: network.client(1), identity: network.identity(1).identity, hash: hash.none });
  try {
    const contract = gateway.getNetwork(channel).getContract('basic');
    const id = newAsset();
    const unsigned = contract.newProposal('CreateAsset', { arguments: [id, 'red', '1', 'Offline', '9'] });
    const proposal = gateway.newSignedProposal(unsigned.getBytes(), sign(unsigned.getDigest()));
    const endorsed = await proposal.endorse();
    const transaction = gateway.newSignedTransaction(endorsed.getBytes(), sign(endorsed.getDigest()));
    const submitted = await transaction.submit();
    const commit = gateway.newSignedCommit(submitted.getBytes(), sign(submitted.getDigest()));
    const status = await commit.getStatus();
    assert.equal(status.code, TxValidationCode.VALID);
    assert.equal(status.transactionId, unsigned.getTransactionId());

    const query = contract.newProposal('ReadAsset', { arguments: [id] });
    const asset = await gateway.newSignedProposal(query.getBytes(), sign(query.getDigest())).evaluate();
    assert.equal(JSON.parse(text(asset)).Owner, 'Offline');
  } finally {
    gateway.close();
  }
});

function derSignature(r, s) {
  const integer = (value) => {
    let digits = value.toString(16);
    digits = digits.length % 2 ? `0${digits}` : digits;
    const bytes = Buffer.from(Number.parseInt(digits.slice(0, 2), 16) > 127 ? `00${digits}` : digits, 'hex');
    return Buffer.concat([Buffer.from([2, bytes.length]), bytes]);
  };
  const body = Buffer.concat([integer(r), integer(s)]);
  return Buffer.concat([Buffer.from([0x30, body.length]), body]);
}

test('a message of ten megabytes passes', async () => {
  const contract = network.contract();
  const id = newAsset();
  const owner = 'x'.repeat(10 << 20);
  const large = network
    .gateway(1, { client: largeClient() })
    .getNetwork(channel)
    .getContract('basic');
  await large.submitTransaction('CreateAsset', id, 'blue', '5', owner, '300');
  await assert.rejects(contract.submitTransaction('CreateAsset', id, 'blue', '5', 'Tomoko', '300'), EndorseError);
});

function largeClient() {
  const client = new grpc.Client(
    network.endpoints.gateways[0].address,
    grpc.credentials.createSsl(network.tlsRoots(1)),
    {
      'grpc.ssl_target_name_override': network.peerName(1),
      'grpc.max_receive_message_length': 100 << 20,
      'grpc.max_send_message_length': 100 << 20,
    },
  );
  network.connections.push(client);
  return client;
}
