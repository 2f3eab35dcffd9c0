package bench

import (
	"flag"
	"strings"
	"testing"
	"time"
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
	b.Run(label(s.name)+"/"+patient.name, func(b *testing.B) {
		patient.into(b, s, func(o outcome) {
			row := beside(o.row(b), rate)
			add(b, row)
			if !o.cut.IsZero() || row.Lost > 0 || row.Twice > 0 {
				b.Errorf("%d of %d tasks were done, %d twice, %d lost", row.Started, row.Tasks, row.Twice, row.Lost)
			}
			if row.OverAPI > 0 {
				b.Errorf("a limit was exceeded by %.2f", row.OverAPI)
			}
			if len(o.keys) > fewKeys {
				b.Errorf("%d keys of ours are left, such as %q", len(o.keys), o.keys[:5])
			}
			if most := o.built.quarters; most[3] > 1.25*most[1] {
				b.Errorf("the workers' memory grows: %.0f MB in each quarter", most)
			}
		})
	})
}
