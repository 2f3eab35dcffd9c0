package replay_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/headway-go/headway/throttle/demand"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/replay"
)

// aDay is a record of so many tasks of 200 tenants, spread over a day with two peaks, that take a second or less each.
func aDay(tb testing.TB, tasks int) []byte {
	tb.Helper()
	var text bytes.Buffer
	zip := gzip.NewWriter(&text)
	enc := json.NewEncoder(zip)
	began, random := time.Date(2030, 1, 31, 0, 0, 0, 0, time.UTC).UnixMicro(), rand.New(rand.NewPCG(1, 2))
	process := demand.Process{V: demand.Version, Process: "web-1", At: began, Slots: 64}
	redistestMust(tb, enc.Encode(process))
	for i := range tasks {
		share := float64(i) / float64(tasks)
		if i%4 == 0 { // a quarter comes in two hours
			share = 0.4 + share/12
		}
		at := began + int64(share*24*3600e6)
		t := demand.Task{
			ID: demand.ID("default", fmt.Sprint(i)), Scope: fmt.Sprintf("payments/t%d", random.IntN(200)), Queue: "default", Outcome: "ok",
			Wanted: at, Started: at, Ended: at + random.Int64N(1_000_000),
		}
		if i%3 == 0 {
			t.Costs = policy.Costs{"requests": 1, "tokens": 1 + random.Int64N(2000)}
		}
		redistestMust(tb, enc.Encode(t))
	}
	process.At, process.End = began+24*3600e6, true
	redistestMust(tb, enc.Encode(process), zip.Close())
	return text.Bytes()
}

func redistestMust(tb testing.TB, errs ...error) {
	tb.Helper()
	for _, err := range errs {
		if err != nil {
			tb.Fatal(err)
		}
	}
}

const dayLimits = `
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

// "A million tasks take some seconds": reading the record, and running it under four rules with long queues.
func BenchmarkReplayOfADay(b *testing.B) {
	const tasks = 1_000_000
	text := aDay(b, tasks)
	draft, err := limitsyaml.Parse("draft.yaml", []byte(dayLimits))
	redistestMust(b, err)
	for b.Loop() {
		r := replay.NewRecord()
		redistestMust(b, r.Read(bytes.NewReader(text)))
		report := replay.Run(r, draft, replay.Config{})
		if report.Tasks != tasks || report.Scopes[0].Waits.P99 < time.Minute {
			b.Fatalf("%+v", report.Scopes[0])
		}
	}
	b.ReportMetric(float64(len(text))/tasks, "bytes/task")
	b.ReportMetric(b.Elapsed().Seconds()/float64(b.N), "s/day")
}
