package wire

import "time"

// GrantText returns a grant as scripts keep it: what was charged at a start under rules of a shape, at the places of its units.
// score is the task's place in its line, or 0; member the name of a pool's member as MemberRules has it, "" for none.
func GrantText(start, score, shape int64, places []int64, path, cost, member string) string {
	b := seven([]byte{byte(len(places))}, start, score, 0, shape)
	b = seven(b, places...)
	if member != "" {
		cost += "\n" + member
	}
	return string(b) + path + "\n" + cost
}

// Report is what became of a granted attempt; see lua/settle.lua.
type Report struct {
	Lease   string
	What    string // ended, kept, unused, late, spent
	Number  int64  // µs: see the script
	Grant   string // GrantText
	Text    string // of the scope's rules
	Charged []Charged
}

// Charged is what an attempt is charged under a rule.
type Charged struct{ Units, Over, Spent int64 }

// SettleArgs returns the arguments of settle.
func SettleArgs(clock string, reports ...Report) []any {
	args := []any{clock}
	for _, r := range reports {
		var b []byte
		for _, c := range r.Charged {
			b = seven(b, c.Units, c.Over, c.Spent)
		}
		args = append(args, r.Lease, r.What, r.Number, r.Grant, r.Text, string(b))
	}
	return args
}

// Settled is what came back, was charged as a debt, and is not charged under a rule.
type Settled struct{ Back, Debt, Over int64 }

// Done is what settle has done of a report: Status is 1 if it was done, 0 if its grant had come back before, Outdated if its
// rules are out of date.
type Done struct {
	Status byte
	Rules  []Settled
}

// ReadSettles reads the reply of settle for reports, each about so many rules. waits says that tasks wait for what came back.
func ReadSettles(reply any, rules ...int) (now int64, waits bool, list []Done, err error) {
	text, _ := reply.(string)
	r := reader{text: text}
	now, waits = r.number(), r.byte() == 1
	for _, n := range rules {
		d := Done{Status: r.byte()}
		for range n * int(d.Status&1) {
			d.Rules = append(d.Rules, Settled{r.number(), r.number(), r.number()})
		}
		list = append(list, d)
	}
	if r.short || r.text != "" {
		return 0, false, nil, ErrReply
	}
	return now, waits, list, nil
}

// Word is a signal of an API; see lua/report.lua.
type Word struct {
	Verb, Name string
	Numbers    [5]int64
	Rule       string // RuleText, or ""
	Limit      int64  // the API's own, of an adoption; it is not sent
}

// Pauses reports whether it asks for a pause.
func (w Word) Pauses() bool { return w.Verb == "pause" || w.Verb == "rest" }

// RuleText returns the kind and the numbers of a rule.
func RuleText(kind byte, numbers []int64) string { return string(seven([]byte{kind}, numbers...)) }

// ReportArgs returns the arguments of report.
func ReportArgs(clock string, words []Word) []any {
	args := []any{clock}
	for _, w := range words {
		args = append(args, w.Verb, w.Name)
		for _, n := range w.Numbers {
			args = append(args, n)
		}
		args = append(args, w.Rule)
	}
	return args
}

// Noted is what became of a word.
type Noted struct {
	Changed bool
	At      time.Time     // by the server's clock
	Until   time.Time     // when the effect ends, zero for none
	Left    time.Duration // until then
	Name    string        // the level or rule that it is recorded for; "" if Full
	Full    bool          // there is no room for it
}

// ReadReport reads the reply of report.
func ReadReport(reply any, words []Word) (waits bool, noted []Noted, err error) {
	list, _ := reply.([]any)
	if len(list) != 2+3*len(words) {
		return false, nil, ErrReply
	}
	number := func(i int) int64 { n, _ := list[i].(int64); return n }
	for i, w := range words {
		ends, length := number(3+3*i), number(4+3*i)
		note := Noted{Changed: number(2+3*i) == 1, At: time.UnixMicro(number(0)), Name: w.Name[:max(0, length)], Full: length < 0}
		if ends > 0 {
			note.Until = time.UnixMicro(ends)
			note.Left = note.Until.Sub(note.At)
		}
		noted = append(noted, note)
	}
	return number(1) == 1, noted, nil
}

// Correction is what an API has made of a rule's numbers; see lua/report.lua.
type Correction struct {
	Until          int64
	Kind           byte
	Numbers, Whole []int64 // that count, and of which they are a part
	Own            int64   // until when Whole are the API's own, in µs
	Part           int64   // in millionths
	Of             []int64 // the rule's numbers, without which it means nothing
}

// ReadCorrection reads a correction in the hash api.
func ReadCorrection(v string) (c Correction, ok bool) {
	r := reader{text: v}
	c.Until, c.Kind = r.number(), r.byte()
	for _, list := range []*[]int64{&c.Numbers, &c.Whole} {
		for range 4 {
			*list = append(*list, r.number())
		}
	}
	c.Own, c.Part = r.number(), r.number()
	for range 4 {
		r.number()
	}
	for range 4 {
		c.Of = append(c.Of, r.number())
	}
	return c, !r.short
}

// APIKey returns the key of the hash in which the reports of an API are kept.
func APIKey(prefix string) string { return prefix + "api" }

// ResetArgs returns the arguments of reset; which says which rules of the text to reset.
func ResetArgs(clock, path, text string, which []bool) []any {
	bytes := make([]byte, len(which))
	for i, is := range which {
		if is {
			bytes[i] = 1
		}
	}
	return []any{clock, path, text, string(bytes)}
}

// ReadReset reads the reply of reset: whether tasks wait for one of the rules, and the units that each of those that were reset
// had counted.
func ReadReset(reply any, which []bool) (waits bool, used []int64, err error) {
	list, _ := reply.([]any)
	if len(list) != 2+len(which) {
		return false, nil, ErrReply
	}
	for i, is := range which {
		if n, _ := list[2+i].(int64); is {
			used = append(used, n)
		}
	}
	return list[1] == int64(1), used, nil
}
