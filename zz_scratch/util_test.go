package zz

import (
	"fmt"
	"sort"
	"strings"
	"sync"
	"time"
)

type obs struct {
	mu    *sync.Mutex
	picks *int
}

func (o obs) PickedUp(string)                           { o.mu.Lock(); *o.picks++; o.mu.Unlock() }
func (obs) Holding(int)                                 {}
func (obs) Held(time.Duration)                          {}
func (obs) Rescheduled(string, time.Duration)           {}
func (obs) Ran(string, string, time.Duration)           {}
func (obs) LeaseHeld(string, int)                       {}
func (obs) OutOfPatience(string, string, time.Duration) {}
func (obs) Looked(string, string, bool)                 {}
func (obs) DispatchLead(time.Duration)                  {}
func (obs) Failed(kind string)                          { fmt.Println("failed", kind) }

func cmdstats(info string, n int) string {
	type row struct {
		name  string
		calls int
		usec  int
	}
	var rows []row
	total, tu := 0, 0
	for _, line := range strings.Split(info, "\n") {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "cmdstat_") {
			continue
		}
		name, rest, _ := strings.Cut(line[8:], ":")
		var calls, usec int
		fmt.Sscanf(rest, "calls=%d,usec=%d", &calls, &usec)
		rows = append(rows, row{name, calls, usec})
		total += calls
		if name == "evalsha" || name == "eval" || !strings.Contains("hget hset zadd", name) {
			tu += 0
		}
		if name == "evalsha" || name == "eval" {
			tu += usec
		}
	}
	sort.Slice(rows, func(i, j int) bool { return rows[i].calls > rows[j].calls })
	out := fmt.Sprintf("commands/task %.1f, script us/task %.1f:", float64(total)/float64(n), float64(tu)/float64(n))
	for _, r := range rows[:min(len(rows), 22)] {
		out += fmt.Sprintf(" %s=%.2f(%.1fus)", r.name, float64(r.calls)/float64(n), float64(r.usec)/float64(max(1, r.calls)))
	}
	return out
}
