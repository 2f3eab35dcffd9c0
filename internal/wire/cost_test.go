package wire

import (
	"fmt"
	"regexp"
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
)

// BenchmarkScripts measures Redis's own time for a decision and for a start that is dispatched, in µs: make bench PKG=./internal/wire.
func BenchmarkScripts(b *testing.B) {
	rate := func(limit int64) []int64 { return []int64{limit, second, second / 200, 0} }
	for _, rules := range []int{1, 3} {
		its := Rules{Until: Never, Weights: []float64{1}}
		for i := range rules {
			its.Rules = append(its.Rules, Rule{Kind: 'S', Name: fmt.Sprint("rule", i), Numbers: rate(1000)})
		}
		measure(b, fmt.Sprintf("%d rules", rules), its)
	}
	for _, members := range []int64{1, 3, 50} { // which have the same quota together
		pool := &PoolRules{}
		for i := range members {
			of := Rule{Kind: 'S', Level: 1, Name: "key", Numbers: rate(1000 / members)}
			pool.Members = append(pool.Members, MemberRules{Name: fmt.Sprint("member", i), Rules: []Rule{of}})
		}
		measure(b, fmt.Sprintf("%d members", members), Rules{Until: Never, Weights: []float64{1}, Pool: pool})
	}
}

// measure measures decisions that are granted, with an id and without, and starts that are dispatched, under the rules of 20 scopes.
func measure(b *testing.B, name string, its Rules) {
	b.Helper()
	text := its.Text()
	b.Run(name+", decide", func(b *testing.B) {
		measureDecide(b, func(int) Attempt { return Attempt{Scope: "/a", Text: text, Cost: 1} })
	})
	b.Run(name+", decide by id", func(b *testing.B) {
		measureDecide(b, func(i int) Attempt { return Attempt{Scope: "/a", Text: text, Cost: 1, ID: strconv.Itoa(i)} })
	})
	b.Run(name+", denied", func(b *testing.B) { // seven of eight
		measureDecide(b, func(int) Attempt { return Attempt{Scope: "/a", Text: text, Cost: 16} })
	})
	b.Run(name+", dispatch", func(b *testing.B) {
		rdb := redistest.Client(b)
		starts, calls := 0, epoch
		run := func(script string, args []any) any {
			reply, err := Run(b.Context(), rdb, scriptOf(script), prefix, args...)
			if err != nil {
				b.Fatal(err)
			}
			return reply
		}
		var spent float64
		for b.Loop() {
			for scope := range 20 {
				var tasks []Task
				for range 50 {
					starts++
					tasks = append(tasks, Task{Scope: fmt.Sprint("/", scope), Text: text, Queue: "q", ID: strconv.Itoa(starts), Cost: "1"})
				}
				run("join", JoinArgs(strconv.FormatInt(calls, 10), tasks))
			}
			rdb.ConfigResetStat(b.Context())
			for left := 1000; left > 0; calls += 80000 {
				d := Dispatch{Lead: lead, Spread: spread, Most: 200, Version: its.Version, Policy: its.Policy, Serves: []Weighted{{"q", 1}}}
				got, err := ReadDispatch(run("dispatch", d.Args(strconv.FormatInt(calls, 10))))
				if err != nil {
					b.Fatal(err)
				}
				left -= len(got.Granted)
				for _, g := range got.Granted {
					rdb.HDel(b.Context(), prefix+"flight", g.Waiter)
					rdb.ZRem(b.Context(), prefix+"flights", g.Waiter)
				}
			}
			spent += scriptTime(b, rdb)
		}
		b.ReportMetric(spent/float64(starts), "µs/start")
	})
}

func measureDecide(b *testing.B, attempt func(i int) Attempt) {
	b.Helper()
	rdb := redistest.Client(b)
	rdb.ConfigResetStat(b.Context())
	i, now := 0, epoch
	for b.Loop() {
		i++
		now += 2000
		args := DecideArgs(strconv.FormatInt(now, 10), string(seven(make([]byte, 9), int64(i))), "1", []Attempt{attempt(i)})
		if _, err := Run(b.Context(), rdb, scriptOf("decide"), prefix, args...); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(scriptTime(b, rdb)/float64(i), "µs/decision")
}

var evalshaTime = regexp.MustCompile(`cmdstat_evalsha:calls=\d+,usec=(\d+)`)

// scriptTime is what Redis spent in scripts since its statistics were reset, in µs.
func scriptTime(b *testing.B, rdb redis.UniversalClient) float64 {
	b.Helper()
	info, err := rdb.Info(b.Context(), "commandstats").Result()
	m := evalshaTime.FindStringSubmatch(info)
	if err != nil || m == nil {
		b.Fatal(err, info)
	}
	us, _ := strconv.ParseFloat(m[1], 64)
	return us
}
