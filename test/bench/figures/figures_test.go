package figures

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

const ms = time.Millisecond

// every returns n starts, gap apart.
func every(n int, gap time.Duration) []time.Duration {
	starts := make([]time.Duration, n)
	for i := range starts {
		starts[i] = time.Duration(i) * gap
	}
	return starts
}

// bursts returns n bursts of size starts each, gap apart.
func bursts(n, size int, gap time.Duration) []time.Duration {
	var starts []time.Duration
	for i := range n {
		starts = append(starts, slices.Repeat([]time.Duration{time.Duration(i) * gap}, size)...)
	}
	return starts
}

var (
	bucket   = Rule{Bucket: true, Limit: 100, Burst: 1, Per: time.Second}
	bucket10 = Rule{Bucket: true, Limit: 100, Burst: 10, Per: time.Second}
	window   = Rule{Limit: 100, Per: time.Second}
)

func TestUsed(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		rule   Rule
		starts []time.Duration
		cut    time.Duration
		want   float64
	}{
		"nothing":                            {bucket, nil, time.Second, None},
		"a bucket on schedule":               {bucket, every(101, 10*ms), 0, 1},
		"with a pad of 5 ms":                 {bucket, every(201, 10050*time.Microsecond), 0, 1 / 1.005},
		"at half its rate":                   {bucket, every(101, 20*ms), 0, 0.5},
		"a full bucket":                      {bucket10, append(bursts(1, 9, 0), every(101, 10*ms)...), 0, 1},
		"that was only emptied":              {bucket10, bursts(1, 10, 0), 0, None},
		"one start and then nothing":         {bucket, every(1, 0), time.Second, 0},
		"cut while idle":                     {bucket, every(51, 10*ms), time.Second, 0.5},
		"windows, filled at once":            {window, bursts(20, 100, time.Second), 0, 1},
		"a window that lies behind a pause":  {window, bursts(3, 100, 2*time.Second), 0, 0.5},
		"a single window":                    {window, bursts(1, 100, 0), 0, None},
		"windows cut on their way":           {window, bursts(3, 100, 1005*ms), 2500 * ms, 1},
		"windows cut while nothing starts":   {window, bursts(1, 100, 0), 4 * time.Second, 0.25},
		"windows cut before the first ended": {window, bursts(1, 100, 0), 900 * ms, None},
	} {
		got := test.rule.Used(test.starts, test.cut)
		if math.Abs(got-test.want) > 1e-9 || math.IsNaN(got) != math.IsNaN(test.want) {
			t.Errorf("%s: used %v, want %v", name, got, test.want)
		}
	}
}

// plainly is Lateness by its definition, every pair of starts looked at by itself.
func (r Rule) plainly(starts []time.Duration) []time.Duration {
	apart := func(units int) time.Duration { // how far the first and the last of so many more must be
		switch {
		case units < r.first():
			return 0
		case r.Bucket:
			return r.times(int64(units + 1 - r.first()))
		}
		return time.Duration(units/r.first()) * r.Per
	}
	grants := slices.Clone(starts)
	for i := range starts {
		for j := i + r.first(); j < len(starts); j++ {
			grants[i] = min(grants[i], starts[j]-apart(j-i))
		}
	}
	late := make([]time.Duration, len(starts))
	for i, start := range starts {
		free := starts[0]
		for k := 0; k <= i-r.first(); k++ {
			free = max(free, grants[k]+apart(i-k))
		}
		late[i] = max(0, start-free)
	}
	return late
}

func TestLatenessByItsDefinition(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 1))
	for range 2000 {
		r := Rule{Bucket: rnd.IntN(2) == 0, Limit: 1 + rnd.Int64N(4), Burst: 1 + rnd.Int64N(4), Per: 60}
		starts := make([]time.Duration, rnd.IntN(30))
		for i := range starts {
			starts[i] = time.Duration(rnd.IntN(400))
		}
		slices.Sort(starts)
		if got, want := r.Lateness(starts), r.plainly(starts); !slices.Equal(got, want) {
			t.Fatalf("seed %d: %+v, starts %v:\n%v\nby definition\n%v", seed, r, starts, got, want)
		}
	}
}

func TestTable(t *testing.T) {
	t.Parallel()
	full := NewRow("2000 at 100/s", "Headway")
	full.Started, full.Tasks, full.Used, full.Most, full.Bound, full.P50 = 2000, 2000, 0.9951, 100, 100, 670*time.Microsecond
	over := NewRow("2000 at 100/s", "the usual way")
	over.Started, over.Tasks, over.Most, over.Over, over.Rate, over.Lost = 180, 2000, 200, 99.5, 18, 0
	absent := NewRow("decisions", "BullMQ")
	absent.Missing = "no node"
	var out strings.Builder
	if err := WriteTable(&out, []Row{full, over, absent}); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if len(lines) != 5 {
		t.Fatalf("%d lines:\n%s", len(lines), out.String())
	}
	for i, want := range []string{
		"| measure |who |started |used |most |at the API |bound |pick-ups |commands |µs |longest ms |p50 ms |p99 ms |a second |bytes |lost |twice |note |",
		"",
		"| 2000 at 100/s |Headway |2000 |99.5 % |100 | |100 | | | | |0.67 | | | | | | |",
		"| |the usual way |180 of 2000 | |200, over by 99.50 | | | | | | | | |18.0 | |0 | | |",
		"| decisions |BullMQ | | | | | | | | | | | | | | | |missing: no node |",
	} {
		if got := strings.Join(strings.Fields(strings.ReplaceAll(lines[i], "|", " | ")), " "); want != "" && got != strings.Join(strings.Fields(strings.ReplaceAll(want, "|", " | ")), " ") {
			t.Errorf("line %d is\n%s\nwant\n%s", i, got, want)
		}
		if n := len([]rune(lines[i])); n != len([]rune(lines[0])) {
			t.Errorf("line %d has %d characters, the first %d", i, n, len([]rune(lines[0])))
		}
	}
}

// Rows that were measured later take the place of those of their measure, or follow; the others stay to the byte.
func TestMerge(t *testing.T) {
	t.Parallel()
	row := func(measure, who string, rate float64) Row {
		r := NewRow(measure, who)
		r.Rate = rate
		return r
	}
	table := func(rows ...Row) string {
		var out strings.Builder
		if err := WriteTable(&out, rows); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	old := table(row("first", "a", 1), row("first", "b, with a long name", 2), row("second", "a", 3), row("third", "a", 4))
	for name, c := range map[string]struct {
		rows []Row
		want string
	}{
		"none":    {nil, old},
		"another": {[]Row{row("fourth", "a", 5), row("fourth", "b", 6)}, table(row("first", "a", 1), row("first", "b, with a long name", 2), row("second", "a", 3), row("third", "a", 4), row("fourth", "a", 5), row("fourth", "b", 6))},
		"anew":    {[]Row{row("first", "c", 7), row("third", "a", 8)}, table(row("first", "c", 7), row("second", "a", 3), row("third", "a", 8))},
	} {
		var out strings.Builder
		if err := Merge(&out, old, c.rows); err != nil || out.String() != c.want {
			t.Errorf("%s: %v\n%swant\n%s", name, err, out.String(), c.want)
		}
	}
	for _, strange := range []string{"", "no table\n", "| a | b |\n|---|---|\n| 1 | 2 |\n", strings.Replace(old, "| used", "| more", 1)} {
		if err := Merge(io.Discard, strange, nil); err == nil {
			t.Errorf("%q was taken for a table", strange)
		}
	}
}

func TestChart(t *testing.T) {
	t.Parallel()
	svg := Chart{
		Title: "a < b", Span: time.Second, Slice: 100 * ms, Limit: 10,
		Panels: []Panel{{"one", bursts(1, 90, 0)}, {"two", every(100, 10*ms)}},
	}.SVG()
	in := xml.NewDecoder(strings.NewReader(svg))
	for {
		_, err := in.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, svg)
		}
	}
	for _, want := range []string{"a &lt; b", ">one<", ">two<", ">40<", ">90 ↑<", "prefers-color-scheme: dark"} {
		if !strings.Contains(svg, want) {
			t.Errorf("the picture lacks %s:\n%s", want, svg)
		}
	}
}
