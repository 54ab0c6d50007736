// Reads one partition through RLM and prints each batch: first offset, last offset, records.
//
//     npm ci && node read.mjs rlm.example:50053 payments 0
//
// Plaintext, for RLM on this machine; else pass grpc.credentials.createSsl(...) below.

import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

import grpc from "@grpc/grpc-js";
import loader from "@grpc/proto-loader";

const ROOT = fileURLToPath(new URL("../../../", import.meta.url));
const MAX_BYTES = 1024 * 1024;
// Of a batch in Kafka's format: the header's fields that are read, and its length.
const BATCH_LENGTH = 8;
const LAST_OFFSET_DELTA = 23;
const RECORDS = 57;
const HEADER_BYTES = 61;
const BEFORE_LENGTH_ENDS = 12;

const definition = loader.loadSync("tieredstorage/v1/remote_log_manager.proto", {
  includeDirs: [`${ROOT}protos`, `${ROOT}third_party`],
  longs: String,
  enums: String,
  defaults: true,
});
const { RemoteLogManager } = grpc.loadPackageDefinition(definition).tieredstorage.v1;

/** Returns the partition with the id of its topic. */
async function find(rlm, topic, partition) {
  const describe = promisify(rlm.DescribePartitions).bind(rlm);
  let pageToken = "";
  do {
    const page = await describe({ topics: [topic], pageToken });
    for (const { topicIdPartition } of page.partitions) {
      if (topicIdPartition.partition === partition) return topicIdPartition;
    }
    pageToken = page.nextPageToken;
  } while (pageToken);
  throw new Error(`${topic}-${partition} is unknown here; \`sediment partitions\` lists what is known`);
}

/** Yields the whole batches of a buffer; a reply may begin with a batch before the wanted offset. */
function* batches(buffer) {
  for (let at = 0; at + HEADER_BYTES <= buffer.length; ) {
    const end = at + BEFORE_LENGTH_ENDS + buffer.readInt32BE(at + BATCH_LENGTH);
    if (end > buffer.length) return;
    const first = buffer.readBigInt64BE(at);
    const last = first + BigInt(buffer.readInt32BE(at + LAST_OFFSET_DELTA));
    yield { first, last, records: buffer.readInt32BE(at + RECORDS) };
    at = end;
  }
}

/** Yields all batches from an offset to the end of the log. */
async function* read(rlm, topicIdPartition, fetchOffset) {
  for (let isAtEnd = false; !isAtEnd; ) {
    const parts = [];
    const call = rlm.Fetch({
      partitions: [{ topicIdPartition, fetchOffset: String(fetchOffset), maxBytes: MAX_BYTES }],
      maxBytes: MAX_BYTES,
      isolationLevel: "ISOLATION_LEVEL_READ_COMMITTED",
    });
    for await (const part of call) {
      if (part.error !== "FETCH_ERROR_NONE") throw new Error(`${part.error}: ${part.errorMessage}`);
      parts.push(part);
    }
    isAtEnd = parts.every((part) => part.recordBatches.length === 0 && part.throttleTimeMs === 0);
    for (const batch of batches(Buffer.concat(parts.map((part) => part.recordBatches)))) {
      if (batch.last >= fetchOffset) yield batch;
      fetchOffset = batch.last + 1n;
    }
  }
}

const [address, topic, partition] = process.argv.slice(2);
const rlm = new RemoteLogManager(address, grpc.credentials.createInsecure());
for await (const { first, last, records } of read(rlm, await find(rlm, topic, Number(partition)), 0n)) {
  console.log(`${first} ${last} ${records}`);
}
rlm.close();
