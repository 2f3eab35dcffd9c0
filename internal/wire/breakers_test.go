package wire

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// pausing is the pause of a node, as docs/vendor.md#pauses and docs/breaker.md have it.
type pausing struct {
	Pause
	lease, remembered int64
}

// The numbers of those pages.
const (
	slots                       = 6
	guessLease, guessRemembered = 10 * second, 60 * second
	probeLease, openRemembered  = 30 * second, 3600 * second
)

// allGo is from when on starts are no probes any more.
func (p *pausing) allGo() int64 { return p.Ends + max(p.Length, p.remembered) }

// admits is the first moment from t on at which it lets a start through, and whether that is sure.
func (p *pausing) admits(now, t int64) (int64, bool) {
	t = max(t, p.Ends)
	var out []int64
	for _, probe := range p.Out {
		if probe.Till > now {
			out = append(out, probe.Till)
		}
	}
	if p.Probes == 0 || t >= p.allGo() || int64(len(out)) < p.Probes {
		return t, true
	}
	slices.Sort(out)
	return max(t, min(p.allGo(), out[int64(len(out))-p.Probes])), false
}

// send has a start be a probe, if it comes while those are counted.
func (p *pausing) send(lease string, start int64) {
	if p.Probes > 0 && start < p.allGo() {
		p.Out = append(p.Out, Probe{min(start+p.lease, p.allGo()), lease})
	}
}

// free has the place of a probe be free. It reports whether it had one.
func (p *pausing) free(lease string) bool {
	i := slices.IndexFunc(p.Out, func(probe Probe) bool { return probe.ID == lease })
	if i >= 0 {
		p.Out = slices.Delete(p.Out, i, i+1)
	}
	return i >= 0
}

// pausesOf are the pauses of nodes.
func (w *world) pausesOf(nodes []string) (out []*pausing) {
	for _, node := range nodes {
		for _, letter := range []string{"P", "B"} {
			if p := w.pauses[letter+node]; p != nil {
				out = append(out, p)
			}
		}
	}
	return out
}

// heardFrom reads the pauses of a node after a word about it, and checks that Redis has those of others as the model does.
func (w *world) heardFrom(node string) error {
	has := map[string]*pausing{}
	for field, v := range w.rdb.HGetAll(context.Background(), prefix+"api").Val() {
		p, _ := ReadPause(v)
		switch field[0] {
		case 'P':
			has[field] = &pausing{p, guessLease, guessRemembered}
		case 'B':
			has[field] = &pausing{p, probeLease, openRemembered}
		}
	}
	for field, p := range w.pauses {
		if is := has[field]; field[1:] != node && is != nil && is.Since == p.Since && is.Ends == p.Ends && fmt.Sprint(w.tills(is)) != fmt.Sprint(w.tills(p)) {
			return wrong("probes of %q: %v, Redis has %v", field, p.Out, is.Out)
		}
	}
	w.pauses = has
	return nil
}

// tills are the places of probes that count.
func (w *world) tills(p *pausing) (out []int64) {
	for _, probe := range p.Out {
		if probe.Till > w.now {
			out = append(out, probe.Till)
		}
	}
	slices.Sort(out)
	return out
}

// tally is what processes have reported of the calls of a node.
type tally struct {
	mark  int64
	calls []reported
}

type reported struct{ slot, process, calls, failures int64 }

// breakers are the settings from which a history draws one for a node, always the same.
var breakers = []Breaker{
	{Failures: 50, Of: 6, In: 3 * second, Probes: 1, Wait: second},
	{Failures: 30, Of: 4, In: 6 * second, Probes: 2, Wait: 2 * second},
	{Failures: 60, Of: 5, In: 2 * second, Probes: 1, Wait: second, Shadow: true},
}

func breakerOf(node string) Breaker { return breakers[len(node)%len(breakers)] }

// calls has a process report calls of a node, and checks whether that opens its breaker.
func (h *history) calls(node string) error {
	b, process := breakerOf(node), 1+h.Int64N(3)
	calls := h.Int64N(6)
	failures, age := calls-h.Int64N(calls+1), h.Int64N(second)
	if failures == 0 {
		age = 0
	}
	opens, ends := h.judge(node, b, reported{process: process, calls: calls, failures: failures}, age)
	noted, err := h.word(CallsWord(node, b, process, calls, failures, age))
	if err != nil {
		return err
	}
	if noted.Changed != opens || ends != 0 && noted.Until.UnixMicro() != ends || ends == 0 && !noted.Until.IsZero() {
		return wrong("%+v of %q: %+v, and it opens: %t until %d", b, node, noted, opens, ends-epoch)
	}
	p := h.pauses["B"+node]
	if opens && !b.Shadow && (p == nil || p.Ends != ends || p.Since != h.now || p.Probes != b.Probes || len(p.Out) > 0) {
		return wrong("the breaker of %q is open as %+v", node, p)
	}
	if opens && b.Shadow && p != nil && p.Since == h.now {
		return wrong("the breaker of %q only counts, and is open", node)
	}
	return nil
}

// judge says whether a report opens a breaker, and until when it is open then.
func (h *history) judge(node string, b Breaker, r reported, age int64) (opens bool, ends int64) {
	if p := h.pauses["B"+node]; p != nil && h.now < p.allGo() {
		return false, p.Ends
	}
	length := (b.In + slots - 1) / slots
	t := h.tallies[node]
	if t == nil {
		t = &tally{}
		h.tallies[node] = t
	}
	if h.now-age < t.mark {
		r.calls, r.failures = r.calls-r.failures, 0
	}
	r.slot = h.now / length
	t.calls = slices.DeleteFunc(append(t.calls, r), func(o reported) bool { return r.slot-o.slot >= slots })
	all, failed, by := int64(0), int64(0), map[int64][2]int64{}
	for _, o := range t.calls {
		all, failed = all+o.calls, failed+o.failures
		by[o.process] = [2]int64{by[o.process][0] + o.calls, by[o.process][1] + o.failures}
	}
	running, failing := 0, 0
	for process, n := range by {
		if n[0] > 0 || process == r.process {
			running++
		}
		if n[1] > 0 && 100*n[1] >= b.Failures*n[0] {
			failing++
		}
	}
	if r.failures == 0 || all < b.Of || 100*failed < b.Failures*all || failing < min(2, running) {
		return false, 0
	}
	delete(h.tallies, node)
	if b.Shadow {
		h.tallies[node] = &tally{mark: h.now + b.Wait}
	}
	return true, h.now + b.Wait
}

// word sends one word, and has the model hear of what it has changed.
func (w *world) word(word Word) (Noted, error) {
	w.say("report %s %q %v %q", word.Verb, word.Name, word.Numbers, word.Rule)
	reply, err := w.run("report", ReportArgs(w.clock(), []Word{word}))
	if err != nil {
		return Noted{}, err
	}
	_, noted, err := ReadReport(reply, []Word{word})
	if err != nil {
		return Noted{}, err
	}
	clear(w.looked)
	return noted[0], w.heardFrom(word.Name)
}

// probeEnds has the run of a task end that is a breaker's probe: its outcome is reported, or it says nothing, or goes on.
func (h *history) probeEnds() error {
	for _, field := range sortedKeys(h.pauses) {
		p := h.pauses[field]
		if field[0] != 'B' || len(p.Out) == 0 {
			continue
		}
		probe := p.Out[h.IntN(len(p.Out))]
		switch h.IntN(4) {
		case 0:
			return h.settles(field[1:], probe, "ended")
		case 1:
			return h.settles(field[1:], probe, "kept")
		}
		return h.probed(field[1:], *p, probe, h.IntN(2) == 0)
	}
	return nil
}

func (h *history) probed(node string, p pausing, probe Probe, failed bool) error {
	counts, half := probe.Till > h.now, p.Ends <= h.now
	noted, err := h.word(ProbedWord(node, probe.ID, failed, 3*second))
	if err != nil {
		return err
	}
	now := h.pauses["B"+node]
	switch {
	case noted.Changed != (counts && half):
		return wrong("a probe of %q that counts %t, half open %t: %+v", node, counts, half, noted)
	case counts && half && !failed:
		if h.tallies[node] = (&tally{mark: h.now}); now != nil {
			return wrong("a probe of %q has succeeded, and it is open: %+v", node, now)
		}
	case counts && half:
		length := min(3*second, 2*p.Length)
		if now == nil || now.Length != length || now.Ends != h.now+length || now.Since != p.Since {
			return wrong("a probe of %q has failed, and it was %+v, is %+v", node, p, now)
		}
	case now == nil || now.Ends != p.Ends:
		return wrong("a probe of %q that does not count has ended, and it is %+v", node, now)
	}
	if now != nil && slices.ContainsFunc(now.Out, func(o Probe) bool { return o.ID == probe.ID && o.Till > h.now }) {
		return wrong("a probe of %q has ended, and is on its way", node)
	}
	return nil
}

// settles reports the run of a probe's task to settle, as one that has ended or goes on.
func (h *history) settles(node string, probe Probe, what string) error {
	its := h.of(node, h.policy)
	if slices.ContainsFunc(its.Rules, func(r Rule) bool { return r.Kind == 'C' }) {
		return nil // the places of such rules are not modelled beyond their lease
	}
	_, at, _ := strings.Cut(probe.ID, "@")
	start, _ := strconv.ParseInt(at, 10, 64)
	h.say("%s %s of %q", probe.ID, what, node)
	r := Report{Lease: probe.ID, What: what, Text: h.text(node), Grant: GrantText(start, 0, h.shape, make([]int64, len(its.Rules)), node, "1", ""), Charged: make([]Charged, len(its.Rules))}
	if _, err := h.run("settle", SettleArgs(h.clock(), r)); err != nil {
		return err
	}
	for _, p := range h.pausesOf(its.nodes(node)) {
		i := slices.IndexFunc(p.Out, func(o Probe) bool { return o.ID == probe.ID && o.Till > h.now })
		switch {
		case i < 0 || p.lease != probeLease:
		case what == "ended":
			p.Out = slices.Delete(p.Out, i, i+1)
		default:
			p.Out[i].Till = min(h.now+p.lease, p.allGo())
		}
	}
	clear(h.looked)
	return nil
}

// trips and closes are what a person does by hand.
func (h *history) trips(node string) error {
	delete(h.tallies, node)
	_, err := h.word(Word{Verb: "trip", Name: node, Numbers: [5]int64{1 + h.Int64N(2), second}})
	return err
}

func (h *history) closes(node string) error {
	was := h.pauses["B"+node]
	noted, err := h.word(Word{Verb: "close", Name: node})
	if noted.Changed {
		h.tallies[node] = &tally{mark: h.now}
	}
	if err == nil && (noted.Changed != (was != nil) || h.pauses["B"+node] != nil) {
		return wrong("%q is closed, and was %+v, is %+v", node, was, h.pauses["B"+node])
	}
	return err
}
