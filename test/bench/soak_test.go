package bench

import (
	"flag"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/bench/figures"
)

// BenchmarkSoak gives the built programs a million tasks of 100,000 tenants, enqueued meanwhile. It fails unless all are done and
// nothing was over, the workers' memory stays flat, and Redis is empty of our keys, usage apart, a minute after the last window. It
// runs only if it is asked for by its name: it takes ten minutes.
func BenchmarkSoak(b *testing.B) {
	if !strings.Contains(flag.Lookup("test.bench").Value.String(), "Soak") {
		b.Skip("make soak runs it")
	}
	s := later(crowd(100_000, 5, 2000, 1_000_000))
	if !long() {
		s = later(crowd(1000, 5, 2000, 10_000))
	}
	s.traces = time.Minute + time.Second
	patient := builtPrograms // however slow, all are to be done
	patient.spell = 4 * time.Duration(len(s.tasks)) * time.Second / 2000
	rate := aloneRate(b, s)
	patient.into(b, s, func(o *outcome) figures.Row {
		row := beside(o.row(), rate)
		if !o.cut.IsZero() || row.Lost > 0 || row.Twice > 0 {
			o.b.Errorf("%d of %d tasks were done, %d twice, %d lost", row.Started, row.Tasks, row.Twice, row.Lost)
		}
		if row.OverAPI > 0 {
			o.b.Errorf("a limit was exceeded by %.2f", row.OverAPI)
		}
		if len(o.keys) > fewKeys {
			o.b.Errorf("%d keys of ours are left, such as %q", len(o.keys), o.keys[:5])
		}
		if most := o.built.quarters; most[3] > 1.25*most[1] {
			o.b.Errorf("the workers' memory grows: %.0f MB in each quarter", most)
		}
		return row
	})
}

// fewKeys is how many keys of ours may be left where many tenants were.
const fewKeys = 50

// usageKeys are those that tell who spent what, which outlive the tasks.
var usageKeys = regexp.MustCompile(`!(used|units|shadows|scopes|spent):`)

// leave ends the workers. Where the scenario asks for it, it notes before how many keys of ours are left when so much time
// has passed, or few are.
func (o *outcome) leave(stop func() error) error {
	if o.traces > 0 {
		since := time.Now()
		var usage int
		for o.keys, usage = keysOf(o.b, o.rdb); len(o.keys) > fewKeys && time.Since(since) < o.traces; o.keys, usage = keysOf(o.b, o.rdb) {
			<-time.After(time.Second)
		}
		o.notes = append(o.notes, fmt.Sprintf("%d keys after %.0f s, and %d of usage", len(o.keys), time.Since(since).Seconds(), usage))
	}
	return stop()
}

// keysOf returns the keys of ours, and how many more are those of usage.
func keysOf(b *testing.B, rdb *redis.Client) (ours []string, usage int) {
	b.Helper()
	eachKey(b, rdb, func(key string) {
		if usageKeys.MatchString(key) {
			usage++
		} else {
			ours = append(ours, key)
		}
	})
	return ours, usage
}
