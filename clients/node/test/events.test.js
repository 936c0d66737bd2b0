import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { join } from 'node:path';
import { checkpointers } from '@hyperledger/fabric-gateway';
import { common, msp, peer } from '@hyperledger/fabric-protos';
import { Network, channel, newAsset, take, text } from '../src/network.js';

let network;
before(async () => {
  network = await Network.start({ policy: 'majority' });
});
after(() => network?.stop());

const create = (contract, id) => contract.submitTransaction('CreateAsset', id, 'blue', '5', 'Tomoko', '300');

test('contract events arrive in order, and a checkpoint resumes after the last one seen', async () => {
  const events = network.gateway(1).getNetwork(channel);
  const contract = network.contract(1, 'events');
  const path = join(network.folder, 'checkpoint.json');
  const ids = [newAsset(), newAsset(), newAsset()];
  const first = await contract.submitAsync('CreateAsset', { arguments: [ids[0], 'blue', '5', 'Sam', '100'] });
  const { blockNumber: startBlock } = await first.getStatus();
  await create(contract, ids[1]);

  let checkpointer = await checkpointers.file(path);
  const seen = await take(await events.getChaincodeEvents('events', { startBlock, checkpoint: checkpointer }), 1);
  assert.equal(seen[0].eventName, 'CreateAsset');
  assert.equal(seen[0].chaincodeName, 'events');
  assert.equal(seen[0].transactionId, first.getTransactionId());
  assert.equal(seen[0].blockNumber, startBlock);
  assert.equal(JSON.parse(text(seen[0].payload)).ID, ids[0]);
  await checkpointer.checkpointChaincodeEvent(seen[0]);

  await create(contract, ids[2]);
  checkpointer = await checkpointers.file(path);
  const rest = await take(await events.getChaincodeEvents('events', { checkpoint: checkpointer }), 2);
  assert.deepEqual(
    rest.map((event) => JSON.parse(text(event.payload)).ID),
    ids.slice(1),
  );
});

test('events of new blocks arrive while a client listens', async () => {
  const listening = await network.gateway(2).getNetwork(channel).getChaincodeEvents('events');
  const id = newAsset();
  const taken = take(listening, 1, (event) => JSON.parse(text(event.payload)).ID === id);
  await create(network.contract(1, 'events'), id);
  assert.equal((await taken)[0].eventName, 'CreateAsset');
});

test('blocks and filtered blocks are delivered from the start, each once and in order', async () => {
  const contract = network.contract();
  const submitted = await contract.submitAsync('CreateAsset', { arguments: [newAsset(), 'b', '1', 'o', '1'] });
  const { blockNumber } = await submitted.getStatus();
  const count = Number(blockNumber) + 1;
  const source = network.gateway(1).getNetwork(channel);

  const blocks = await take(await source.getBlockEvents({ startBlock: 0n }), count);
  assert.deepEqual(
    blocks.map((block) => BigInt(block.getHeader().getNumber())),
    Array.from({ length: count }, (_, number) => BigInt(number)),
  );
  for (let number = 1; number < count; number += 1) {
    assert.equal(blocks[number].getHeader().getPreviousHash_asU8().length, 32);
    assert.equal(blocks[number].getMetadata().getMetadataList().length, 5);
  }

  const filtered = await take(await source.getFilteredBlockEvents({ startBlock: 0n }), count);
  assert.equal(filtered[0].getChannelId(), channel);
  const transactions = filtered.at(-1).getFilteredTransactionsList().map((transaction) => transaction.getTxid());
  assert.ok(transactions.includes(submitted.getTransactionId()));
});

test('a block checkpoint resumes with the next block', async () => {
  const source = network.gateway(1).getNetwork(channel);
  const checkpointer = checkpointers.inMemory();
  const [first] = await take(await source.getFilteredBlockEvents({ startBlock: 0n, checkpoint: checkpointer }), 1);
  await checkpointer.checkpointBlock(BigInt(first.getNumber()));
  const [second] = await take(await source.getFilteredBlockEvents({ checkpoint: checkpointer }), 1);
  assert.equal(Number(second.getNumber()), Number(first.getNumber()) + 1);
});

test('a transaction under the majority policy carries endorsements of two organisations', async () => {
  const contract = network.contract();
  const submitted = await contract.submitAsync('CreateAsset', { arguments: [newAsset(), 'b', '1', 'o', '1'] });
  const { code, blockNumber } = await submitted.getStatus();
  assert.equal(code, 0);
  const source = network.gateway(1).getNetwork(channel);
  const [block] = await take(await source.getBlockEvents({ startBlock: blockNumber }), 1);
  const signers = block
    .getData()
    .getDataList_asU8()
    .map((bytes) => common.Payload.deserializeBinary(common.Envelope.deserializeBinary(bytes).getPayload_asU8()))
    .filter((payload) => {
      const header = common.ChannelHeader.deserializeBinary(payload.getHeader().getChannelHeader_asU8());
      return header.getTxId() === submitted.getTransactionId();
    })
    .flatMap((payload) => peer.Transaction.deserializeBinary(payload.getData_asU8()).getActionsList())
    .flatMap((action) =>
      peer.ChaincodeActionPayload.deserializeBinary(action.getPayload_asU8()).getAction().getEndorsementsList(),
    )
    .map((endorsement) => msp.SerializedIdentity.deserializeBinary(endorsement.getEndorser_asU8()).getMspid());
  assert.equal(new Set(signers).size, 2);
  assert.ok(signers.includes('Org1MSP'));
});
