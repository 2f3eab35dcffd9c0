package throttle

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
)

// benchTenants are how many tenants share an account, from one to as many as have a task each.
var benchTenants = []int{1, 200, 10_000}

// benchPolicy is one of an account of 2,000/s, whose tenants have a rule of their own.
func benchPolicy(b *testing.B, own int64) *policy.Policy {
	b.Helper()
	policy, err := policy.New(policy.UnmatchedDeny, map[string]policy.ScopeConfig{"p": {
		Rules:  []policy.Rule{{Name: "account", Algorithm: policy.SlidingWindow, Limit: 2000, Per: time.Second}},
		Scopes: map[string]policy.ScopeConfig{"*": {Rules: []policy.Rule{{Name: "own", Algorithm: policy.SlidingWindow, Limit: own, Per: time.Second}}}},
	}})
	if err != nil {
		b.Fatal(err)
	}
	return policy
}

// spent is what a server has used: µs of its processor, which other programs on the machine do not lengthen, and commands, those
// of scripts among them.
type spent struct {
	us       float64
	commands int
}

func spentBy(b *testing.B, rdb *redis.Client) (out spent) {
	b.Helper()
	for line := range strings.Lines(rdb.Info(b.Context(), "commandstats", "cpu").Val()) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		var calls int
		switch {
		case name == "used_cpu_user" || name == "used_cpu_sys":
			seconds, _ := strconv.ParseFloat(value, 64)
			out.us += seconds * 1e6
		case strings.HasPrefix(name, "cmdstat_"):
			_, _ = fmt.Sscanf(value, "calls=%d,", &calls)
			out.commands += calls
		}
	}
	return out
}

// per reports what was spent since a moment on each of so many.
func (s spent) per(b *testing.B, rdb *redis.Client, what string, many int) {
	b.Helper()
	now := spentBy(b, rdb)
	b.ReportMetric((now.us-s.us)/float64(many), "µs/"+what)
	b.ReportMetric(float64(now.commands-s.commands)/float64(many), "commands/"+what)
}

// BenchmarkLineUp says what a task costs Redis that gets a place.
func BenchmarkLineUp(b *testing.B) {
	for _, tenants := range benchTenants {
		b.Run(fmt.Sprint(tenants, " tenants"), func(b *testing.B) {
			rdb := redis.NewClient(&redis.Options{Addr: redistest.NewServer(b).Addr()})
			defer func() { _ = rdb.Close() }()
			l, err := New(rdb, benchPolicy(b, 5), Config{})
			if err != nil {
				b.Fatal(err)
			}
			const tasks = 10_000
			before := spentBy(b, rdb)
			for b.Loop() {
				rdb.FlushAll(b.Context())
				asks := make([]Waiter, tasks)
				for i := range asks {
					asks[i] = Waiter{Scope: fmt.Sprint("p/", i%tenants), ID: fmt.Sprint("-default/", i)}
				}
				if _, err := l.Waitlist().Join(b.Context(), asks, 20*time.Millisecond, 0); err != nil {
					b.Fatal(err)
				}
			}
			before.per(b, rdb, "task", b.N*tasks)
		})
	}
}
