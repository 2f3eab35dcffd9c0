package wire

import "slices"

// Pause is the pause of a node by an API, a guess or a breaker; see lua/include/pause.lua. Times are in µs since the epoch.
type Pause struct {
	Ends, Since, Length int64
	Probes              int64 // how many may be on their way at once after it; 0 for all
	Calls, Failures     int64 // that opened a breaker
	Out                 []Probe
}

// Probe is a call that goes first after a pause, and until when it holds its place unless more is heard of it.
type Probe struct {
	Till int64
	ID   string
}

// Next returns when it may let a start through at first, unless a probe comes back before, or is renewed.
func (p Pause) Next(now int64) int64 {
	var out []int64
	for _, probe := range p.Out {
		if probe.Till > now {
			out = append(out, probe.Till)
		}
	}
	if p.Probes == 0 || int64(len(out)) < p.Probes {
		return p.Ends
	}
	slices.Sort(out)
	return out[int64(len(out))-p.Probes]
}

// ReadPause reads a pause in the hash api.
func ReadPause(v string) (p Pause, ok bool) {
	r := reader{text: v}
	p = Pause{Ends: r.number(), Since: r.number(), Length: r.number(), Probes: r.number(), Calls: r.number(), Failures: r.number()}
	for r.text != "" {
		till, size := r.number(), int(r.byte())
		if size > len(r.text) {
			return p, false
		}
		p.Out, r.text = append(p.Out, Probe{till, r.text[:size]}), r.text[size:]
	}
	return p, !r.short
}

// Breaker is how the calls of a level are judged; see lua/include/breaker.lua. Times are in µs.
type Breaker struct {
	Failures     int64 // in percent
	Of, In       int64
	Probes, Wait int64
	Shadow       bool
}

// CallsWord reports calls of a level, as a process has counted them, and how long ago the last of those that failed was sent.
func CallsWord(path string, b Breaker, process, calls, failures, age int64) Word {
	w := Word{Verb: "calls", Name: path, Numbers: [5]int64{calls, failures, process, age}}
	if b.Shadow {
		w.Numbers[4] = 1
	}
	w.Rule = RuleText('B', []int64{b.Failures, b.Of, b.In, b.Probes, b.Wait})
	return w
}

// ProbedWord reports how the probe of a lease has ended, for one level, and how long a breaker is open at most until the next probe.
func ProbedWord(path, lease string, failed bool, longest int64) Word {
	w := Word{Verb: "probed", Name: path, Rule: "L" + lease, Numbers: [5]int64{0, longest}}
	if failed {
		w.Numbers[0] = 1
	}
	return w
}
