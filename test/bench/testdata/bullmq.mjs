// A worker of BullMQ with its limiter, for the benchmarks:
//
//   node bullmq.mjs PORT TASKS MAX PER_MS CONCURRENCY API_URL
//
// in a directory where bullmq is installed. It enqueues TASKS jobs, prints
// "ready" and waits for a line on its standard input; works the jobs off, at most
// MAX in PER_MS, and prints "done" after the last; and, at the next line, prints
// one line of JSON: starts, the ids and moments (in ms since 1970) of all calls of
// its processor, and left, how many jobs it still has. With an API_URL every job
// calls it.
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';
import http from 'node:http';
import path from 'node:path';

const { Queue, Worker } = createRequire(path.join(process.cwd(), 'package.json'))('bullmq');
const [port, tasks, max, per, concurrency] = process.argv.slice(2, 7).map(Number);
const api = process.argv[7];
const connection = { host: '127.0.0.1', port, maxRetriesPerRequest: null };
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const agent = new http.Agent({ keepAlive: true });

const call = (id) =>
  new Promise((resolve, reject) => {
    const req = http.request(api, { method: 'POST', agent, headers: { 'X-Task-Id': id } }, (res) => {
      res.resume();
      res.on('end', resolve);
    });
    req.on('error', reject);
    req.end();
  });

const queue = new Queue('work', { connection });
for (let from = 0; from < tasks; from += 1000) {
  const jobs = Array.from({ length: Math.min(1000, tasks - from) }, (_, i) => ({
    name: 'work',
    data: {},
    opts: { jobId: `p#${from + i}`, removeOnComplete: true },
  }));
  await queue.addBulk(jobs);
}
console.log('ready');
await lines.next();

const starts = [];
let completed = 0;
const worker = new Worker(
  'work',
  async (job) => {
    starts.push([job.id, performance.timeOrigin + performance.now()]);
    if (api) await call(job.id);
  },
  { connection, concurrency, limiter: { max, duration: per } },
);
worker.on('completed', () => {
  if (++completed === tasks) console.log('done');
});
worker.on('error', (err) => console.error(err));
await lines.next();

await worker.close();
const left = await queue.getJobCountByTypes('wait', 'active', 'delayed', 'prioritized', 'paused');
await queue.close();
agent.destroy();
process.stdout.write(JSON.stringify({ starts, left }) + '\n', () => process.exit(0)); // not before all is written
