package bench

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/headway-go/headway/test/bench/figures"
	"github.com/headway-go/headway/throttle/demand"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/replay"
)

const replayedDraft = `
limits:
  payments:
    rules:
      - {name: account, algorithm: sliding-window, limit: 15, per: 1s}
      - {name: tokens, algorithm: sliding-window, limit: 300000, per: 1m, unit: tokens}
    scopes:
      "*":
        rules:
          - {name: tenant, algorithm: token-bucket, limit: 10, per: 1m, burst: 5}
          - {name: parallel, algorithm: concurrency, limit: 4}
`

// aDay is a record of so many tasks of 200 tenants, a quarter of them in two hours of the day, that take a second or less each.
func aDay(b *testing.B, tasks int) []byte {
	b.Helper()
	var text bytes.Buffer
	zip := gzip.NewWriter(&text)
	enc := json.NewEncoder(zip)
	const day = 24 * 3600e6
	began, random := time.Date(2030, 1, 31, 0, 0, 0, 0, time.UTC).UnixMicro(), rand.New(rand.NewPCG(1, 2))
	process := demand.Process{V: demand.Version, Process: "web-1", At: began, Slots: 64}
	must(b, enc.Encode(process))
	for i := range tasks {
		share := float64(i) / float64(tasks)
		if i%4 == 0 {
			share = 0.4 + share/12
		}
		at := began + int64(share*day)
		t := demand.Task{
			ID: demand.ID("default", fmt.Sprint(i)), Scope: fmt.Sprintf("payments/t%d", random.IntN(200)), Queue: "default", Outcome: "ok",
			Wanted: at, Started: at, Ended: at + random.Int64N(1_000_000),
		}
		if i%3 == 0 {
			t.Costs = policy.Costs{"requests": 1, "tokens": 1 + random.Int64N(2000)}
		}
		must(b, enc.Encode(t))
	}
	process.At, process.End = began+day, true
	must(b, enc.Encode(process))
	must(b, zip.Close())
	return text.Bytes()
}

// docs/replay.md: a day of a million tasks, reading included, under four rules with long lines. In the short form it has 20,000 tasks.
func BenchmarkReplay(b *testing.B) {
	tasks := 20_000
	if long() {
		tasks = 1_000_000
	}
	text := aDay(b, tasks)
	draft, err := limitsyaml.Parse("draft.yaml", []byte(replayedDraft))
	must(b, err)
	var record *replay.Record
	for b.Loop() {
		record = replay.NewRecord()
		must(b, record.Read(bytes.NewReader(text)))
		report := replay.Run(record, draft)
		if report.Tasks != tasks || len(report.Unknown) > 0 {
			b.Fatalf("%d tasks, %q", report.Tasks, report.Unknown)
		}
	}
	var memory runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&memory)
	runtime.KeepAlive(record)
	took := b.Elapsed().Seconds() / float64(b.N)
	row := figures.NewRow(fmt.Sprintf("replay of a day of %d tasks of 200 tenants under four rules", tasks), "Headway")
	row.Rate = float64(tasks) / took
	row.Note = fmt.Sprintf("in %.1f s; the record is %d bytes a task, and %d MB in memory", took, len(text)/tasks, memory.HeapAlloc>>20)
	table.add(row)
	b.ReportMetric(took, "s/day")
}
