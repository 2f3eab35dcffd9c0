package wire

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
)

// meter reads what scripts cost a server.
type meter struct{ rdb *redis.Client }

var commandStat = regexp.MustCompile(`cmdstat_(\S+):calls=(\d+),usec=(\d+)`)

// reset begins to count anew.
func (m meter) reset(t testing.TB) {
	t.Helper()
	ctx := context.Background()
	for _, args := range [][]any{{"config", "set", "slowlog-log-slower-than", "300"}, {"config", "set", "slowlog-max-len", "3000"}, {"slowlog", "reset"}, {"config", "resetstat"}} {
		if err := m.rdb.Do(ctx, args...).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// counted returns the µs of scripts, how many commands they and their callers sent, and the longest script, in µs.
func (m meter) counted() (micros, commands float64, longest time.Duration) {
	ctx := context.Background()
	for _, stat := range commandStat.FindAllStringSubmatch(m.rdb.Info(ctx, "commandstats").Val(), -1) {
		calls, _ := strconv.ParseFloat(stat[2], 64)
		usec, _ := strconv.ParseFloat(stat[3], 64)
		switch name, _, _ := strings.Cut(stat[1], "|"); name {
		case "evalsha", "eval":
			micros, commands = micros+usec, commands+calls
		case "info", "config", "slowlog", "hello", "client":
		default:
			commands += calls
		}
	}
	for _, entry := range m.rdb.SlowLogGet(ctx, 3000).Val() {
		if strings.HasPrefix(strings.ToLower(entry.Args[0]), "eval") {
			longest = max(longest, entry.Duration)
		}
	}
	return micros, commands, longest
}

func (m meter) memory() float64 {
	_, rest, _ := strings.Cut(m.rdb.Info(context.Background(), "memory").Val(), "used_memory:")
	bytes, _ := strconv.ParseFloat(strings.TrimSpace(strings.SplitN(rest, "\n", 2)[0]), 64)
	return bytes
}

func (m meter) call(t testing.TB, script string, args []any) any {
	t.Helper()
	reply, err := Run(context.Background(), m.rdb, scriptOf(script), prefix, args...)
	if err != nil {
		t.Fatal(err)
	}
	return reply
}

// sliding is a sliding window as the compiler has it for a tolerance of 5 ms.
func sliding(name string, level int, limit int64) Rule {
	per, cells := second+5000, int64(200)
	if limit <= 128 {
		cells = 1 << 35
	}
	return Rule{Kind: 'S', Level: level, Name: name, Numbers: []int64{limit, per, (per + cells - 1) / cells, 0}}
}

func bucket(name string, level int, p, q, burst int64) Rule {
	return Rule{Kind: 'T', Level: level, Name: name, Numbers: []int64{p, q, burst, 0}}
}

func textOf(rules ...Rule) string {
	out := Rules{Version: 1, Policy: 1, Shape: 1, Until: Never, Rules: rules}
	for range rules[len(rules)-1].Level {
		out.Weights = append(out.Weights, 1)
	}
	return out.Text()
}

// BenchmarkTurns has tasks of tenants wait under rules, and two callers of one queue dispatch them at the moments that dispatch
// names, by a clock of its own. Run it with -benchtime 1x.
func BenchmarkTurns(b *testing.B) {
	for _, c := range []struct {
		name           string
		tenants, tasks int
		rules          []Rule
		end            string // of each scope
	}{
		{"tenants=1", 1, 40000, []Rule{sliding("acct", 0, 2000), sliding("ten", 1, 5000)}, ""},
		{"tenants=20", 20, 40000, []Rule{sliding("acct", 0, 2000), sliding("ten", 1, 500)}, ""},
		{"tenants=200", 200, 40000, []Rule{sliding("acct", 0, 2000), sliding("ten", 1, 50)}, ""},
		{"tenants=20000", 20000, 100000, []Rule{sliding("acct", 0, 2000), sliding("ten", 1, 5)}, ""},
		{"bound=200", 200, 30000, []Rule{sliding("acct", 0, 1000000), sliding("ten", 1, 5)}, ""},
		{"levels=3", 20, 3000, []Rule{sliding("acct", 0, 100), bucket("ten", 1, 1, 50000, 20), sliding("ep", 2, 10)}, "/ep"},
	} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				turns(b, c.tenants, c.tasks, textOf(c.rules...), c.end, c.rules[0].Numbers)
			}
		})
	}
}

func turns(b *testing.B, tenants, tasks int, text, end string, account []int64) {
	b.Helper()
	m := meter{redistest.Client(b)}
	m.rdb.FlushAll(context.Background())
	now := epoch
	clock := func() string { return strconv.FormatInt(now, 10) }
	task := func(i int) Task {
		return Task{Scope: fmt.Sprintf("/t%d%s", i%tenants, end), Text: text, Queue: "default", ID: fmt.Sprintf("%032x", i), Cost: "1"} // as long as a uuid
	}
	d := Dispatch{Lead: lead, Spread: spread, Most: 50, Version: 1, Policy: 1, Serves: []Weighted{{"default", 1}}}
	first := task(0)
	first.ID = "first"
	m.call(b, "join", JoinArgs(clock(), []Task{first})) // the server compiles them
	m.call(b, "dispatch", d.Args(clock()))
	before := m.memory()
	m.reset(b)
	for i := 0; i < tasks; i += 64 {
		var batch []Task
		for k := i; k < min(i+64, tasks); k++ {
			batch = append(batch, task(k))
		}
		m.call(b, "join", JoinArgs(clock(), batch))
	}
	micros, _, longest := m.counted()
	b.ReportMetric(micros/float64(tasks), "µs/join")
	b.ReportMetric(float64(longest.Microseconds())/1000, "ms/join-longest")
	b.ReportMetric((m.memory()-before)/float64(tasks), "bytes/task")
	m.reset(b)
	began, starts, calls := now, []int64{}, 0
	next, came := [2]int64{now, now}, [2][]string{}
	for len(starts) < tasks && calls < 200000 {
		k := 0
		if next[1] < next[0] {
			k = 1
		}
		now = max(now, next[k])
		if len(came[k]) > 0 {
			m.rdb.HDel(context.Background(), prefix+"flight", came[k]...)
			m.rdb.ZRem(context.Background(), prefix+"flights", came[k])
		}
		got, err := ReadDispatch(m.call(b, "dispatch", d.Args(clock())))
		if err != nil {
			b.Fatal(err)
		}
		calls, came[k] = calls+1, nil
		for _, g := range got.Granted {
			starts = append(starts, g.Start)
			came[k] = append(came[k], g.Waiter)
		}
		next[k] = max(got.Next, now+1000)
		if got.Next == 0 {
			next[k] = now + 50000
		}
	}
	micros, commands, longest := m.counted()
	n := float64(len(starts))
	b.ReportMetric(micros/n, "µs/dispatched")
	b.ReportMetric(commands/n, "commands/dispatched")
	b.ReportMetric(float64(longest.Microseconds())/1000, "ms/longest")
	b.ReportMetric(float64(calls)/n, "calls/dispatched")
	took := float64(starts[len(starts)-1]-began) / 1e6
	b.ReportMetric(100*(n-float64(account[0]))/(float64(account[0])*took), "%used")
}

// BenchmarkDecide is single decisions that are allowed, and batches.
func BenchmarkDecide(b *testing.B) {
	four := []Rule{sliding("acct", 0, 1000000), bucket("burst", 0, 100, 1, 100000), sliding("ten", 1, 100000), bucket("ep", 2, 100, 1, 100000)}
	for _, c := range []struct {
		name     string
		rules    []Rule
		scopes   int
		many     int
		distinct bool
	}{
		{"T", []Rule{bucket("acct", 0, 100, 1, 100000)}, 1, 1, false},
		{"S", []Rule{sliding("acct", 0, 1000000)}, 1, 1, false},
		{"T-of-20000", []Rule{bucket("ten", 1, 100, 1, 100000)}, 20000, 1, false},
		{"four", four, 1, 1, false},
		{"denied=S", []Rule{sliding("acct", 0, 1)}, 1, 1, false},
		{"alike=32", []Rule{sliding("acct", 0, 1000000)}, 1, 32, false},
		{"alike=32/four", four, 1, 32, false},
		{"tenants=32", []Rule{sliding("acct", 0, 1000000), sliding("ten", 1, 100000)}, 32, 32, true},
	} {
		b.Run(c.name, func(b *testing.B) {
			m := meter{redistest.Client(b)}
			m.rdb.FlushAll(context.Background())
			text, at := textOf(c.rules...), "/ten/ep"[:[]int{0, 4, 7}[c.rules[len(c.rules)-1].Level]]
			now, calls := epoch, int64(0)
			ask := func() {
				now, calls = now+100, calls+1
				attempts := []Attempt{{Scope: at, Text: text, Many: c.many, Cost: 1}}
				if c.scopes > 1 {
					attempts[0].Scope = fmt.Sprintf("/t%d", int(calls)%c.scopes)
				}
				for i := 1; c.distinct && i < c.many; i++ {
					attempts[0].Many = 1
					attempts = append(attempts, Attempt{Scope: fmt.Sprintf("/t%d", i), Text: text, Many: 1, Cost: 1})
				}
				m.call(b, "decide", DecideArgs(strconv.FormatInt(now, 10), string(seven(make([]byte, 9), calls)), "1", attempts))
			}
			ask()
			m.reset(b)
			n := 0.0
			for b.Loop() {
				ask()
				n++
			}
			micros, commands, _ := m.counted()
			b.ReportMetric(micros/n/float64(c.many), "µs/decision")
			b.ReportMetric(micros/n, "µs/call")
			b.ReportMetric(commands/n, "commands/call")
		})
	}
}
