// A first client of this network: creates an asset, reads it back, hands it on, and lists all.
//
//   npm install
//   npm start
//
// It reads connection.json beside it, which the network writes whenever it starts.

'use strict';

const crypto = require('node:crypto');
const fs = require('node:fs');
const path = require('node:path');
const grpc = require('@grpc/grpc-js');
const { connect, hash, signers } = require('@hyperledger/fabric-gateway');

const settings = JSON.parse(fs.readFileSync(path.join(__dirname, 'connection.json'), 'utf8'));
const decoder = new TextDecoder();

function newConnection() {
    if (!settings.tlsCertificate) {
        return new grpc.Client(settings.address, grpc.credentials.createInsecure());
    }
    const roots = fs.readFileSync(path.join(__dirname, settings.tlsCertificate));
    return new grpc.Client(settings.address, grpc.credentials.createSsl(roots), {
        'grpc.ssl_target_name_override': settings.tlsName,
    });
}

async function main() {
    const certificate = fs.readFileSync(path.join(__dirname, settings.certificate));
    const key = crypto.createPrivateKey(fs.readFileSync(path.join(__dirname, settings.privateKey)));
    const connection = newConnection();
    const gateway = connect({
        client: connection,
        identity: { mspId: settings.mspId, credentials: certificate },
        signer: signers.newPrivateKeySigner(key),
        hash: hash.sha256,
    });
    try {
        const contract = gateway.getNetwork(settings.channel).getContract('basic');
        const id = `asset-${Date.now()}`;
        await contract.submitTransaction('CreateAsset', id, 'blue', '5', 'Ada', '300');
        console.log('created', id);
        console.log('read   ', decoder.decode(await contract.evaluateTransaction('ReadAsset', id)));
        await contract.submitTransaction('TransferAsset', id, 'Grace');
        console.log('moved  ', decoder.decode(await contract.evaluateTransaction('ReadAsset', id)));
        const all = JSON.parse(decoder.decode(await contract.evaluateTransaction('GetAllAssets')));
        console.log('all    ', all.length, 'assets');
    } finally {
        gateway.close();
        connection.close();
    }
}

main().catch((error) => {
    console.error(error.message);
    for (const detail of error.details ?? []) {
        console.error(`  ${detail.address} (${detail.mspId}): ${detail.message}`);
    }
    process.exitCode = 1;
});
