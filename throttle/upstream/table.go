package upstream

import (
	"net/http"
	"slices"
	"strings"
	"time"
)

// Table says what an API's answers mean beyond the status and the header fields that most APIs share. The zero Table adds
// nothing. Do not change a Table that a Reader has.
type Table struct {
	// Cases are answers that mean something else than Read takes them for. The first case that matches an answer counts.
	Cases []Case
	// NameFields are header fields whose value names the limit that refused a call, and NamePaths are the paths of such names
	// in the body of an error, as in Case.JSON. They become Hint.Names.
	NameFields, NamePaths []string
	// WaitPaths are the paths in a body of the time until the API wants to be called again: a number of seconds, or a duration
	// such as "34.07s". A Retry-After takes precedence.
	WaitPaths []string
	// Reasons says which scope waits for a limit of a name, in lower case: see Case.Scope.
	Reasons map[string]string
	// Bodies says that the bodies of successes are read too.
	Bodies bool
	// Usage says that answers are those of language models, and that package llm knows what they used.
	Usage bool
	// More reads what no Case can say. It gets what is known so far, and changes it. Defaults to none.
	More func(h *Hint, body Body)
}

// Case is an answer, and what it means. Each of Status, Header, Body and JSON that is set must match.
type Case struct {
	// Status is the status of the answer. 0 is any from 400 to 599.
	Status int
	// Header is the name of a field that the answer has, or "Name: text" for a field whose value contains a text.
	Header string
	// Body is a text that is in the first 4 KiB of the body. Case does not matter, here and in Header.
	Body string
	// JSON is the path of a value in the first 4 KiB of a JSON body, such as "errors.extensions.code", "path=text" for one that is
	// a text, or "path~text" for one that contains a text, whatever its case. A path has the names of members; lists are looked
	// through.
	JSON string

	// Means is what the answer means. Defaults to Limited.
	Means Meaning
	// Wait is the first pause if the answer gives no time: it doubles each time that it was in vain. Defaults to that of
	// policy.Refusals.
	Wait time.Duration
	// Scope is which scope waits: ScopeHere, ScopeTop, or the pattern of a level that the call spends from, such as payments/*.
	// Defaults to what Hint.Names says, and else to ScopeHere.
	Scope string
	// Burns says that the refused task uses up an attempt. Defaults to false.
	Burns bool
	// Counts says that the refused call counts against calendars and long windows. Defaults to policy.Refusals.
	Counts bool
}

// The values of Case.Scope that are no level's pattern.
const (
	ScopeHere = "here" // the scope of the call
	ScopeTop  = "top"  // the level whose `answers` count for the call: that of the account, say
)

// Meaning is what an answer means for the tasks of its scope.
type Meaning string

// The meanings of an answer.
const (
	Limited Meaning = "limited" // the API refuses the call because of a limit, and calls wait
	Failed  Meaning = "failed"  // the API fails
	Fine    Meaning = "fine"    // neither
)

const (
	maxNames = 8 // of a Hint
	// problemType is the media type of RFC 9457.
	problemType = "application/problem+json"
)

// problems reads the types of problem that the IETF draft of the RateLimit fields registers, whatever else a Reader has.
var problems = Table{
	Cases: []Case{
		{Header: "Content-Type: " + problemType, JSON: "type=https://iana.org/assignments/http-problem-types#quota-exceeded"},
		{Header: "Content-Type: " + problemType, JSON: "type=https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"},
		{Header: "Content-Type: " + problemType, JSON: "type=https://iana.org/assignments/http-problem-types#abnormal-usage-detected"},
	},
	NamePaths: []string{"violated-policies"},
}

// Reader reads answers of an API. The zero Reader reads as Read does. A Reader is not changed once it is in use.
type Reader struct {
	// ResetUnit is the unit of resets that are plain numbers. With a millisecond, numbers below 1e9 are waits, so no longer than
	// 11 days. Retry-After and the IETF draft's current form are not affected. Defaults to a second.
	ResetUnit time.Duration
	// Tables say what else the API's answers mean; an earlier one takes precedence.
	Tables []*Table
}

// wantsBody reports whether the body of an answer can change what it means.
func (r Reader) wantsBody(status int, header http.Header) bool {
	switch enc := header.Get("Content-Encoding"); {
	case status == http.StatusSwitchingProtocols, enc != "" && !strings.EqualFold(enc, "identity"):
		return false
	case isProblem(status, header):
		return true
	}
	return slices.ContainsFunc(r.Tables, func(t *Table) bool {
		return t.Bodies || isError(status) && len(t.NamePaths)+len(t.WaitPaths) > 0 || slices.ContainsFunc(t.Cases, func(c Case) bool {
			return c.Body+c.JSON != "" && c.hasStatus(status) && c.hasHeader(header)
		})
	})
}

func isError(status int) bool { return 400 <= status && status <= 599 }

func isProblem(status int, header http.Header) bool {
	return isError(status) && strings.HasPrefix(strings.ToLower(header.Get("Content-Type")), problemType)
}

// readTables adds what the tables say to what the header has said.
func (p *parsed) readTables(tables []*Table) {
	if isProblem(p.status, p.header) {
		tables = append(slices.Clone(tables), &problems)
	}
	for _, t := range tables {
		p.addNames(t)
		p.readWaits(t)
		p.hint.Usage = p.hint.Usage || t.Usage
	}
	for _, t := range tables { // a case has the last word, whichever table gives a wait
		if at := slices.IndexFunc(t.Cases, p.is); at >= 0 {
			p.apply(t.Cases[at])
			break
		}
	}
	for _, t := range tables {
		if t.More != nil {
			t.More(&p.hint, p.body)
		}
	}
}

// ScopeFor returns which scope waits for limits of these names: the Reasons of the first table that has one of them, else "".
func (r Reader) ScopeFor(names []string) string {
	for _, t := range r.Tables {
		for _, name := range names {
			if scope := t.Reasons[strings.ToLower(name)]; scope != "" {
				return scope
			}
		}
	}
	return ""
}

// addNames adds the names of the limits that an answer is about.
func (p *parsed) addNames(t *Table) {
	h := &p.hint
	add := func(name string) {
		if name = printable(strings.TrimSpace(name)); name != "" && len(h.Names) < maxNames && !slices.Contains(h.Names, name) {
			h.Names = append(h.Names, name)
		}
	}
	for _, name := range t.NameFields {
		add(p.header.Get(name))
	}
	if !isError(p.status) {
		return
	}
	for _, path := range t.NamePaths {
		for name := range p.body.All(path) {
			add(name)
		}
	}
}

// readWaits takes the longest wait that the body of an error gives, unless the header gives one.
func (p *parsed) readWaits(t *Table) {
	if p.asked || !isError(p.status) {
		return
	}
	longest := time.Duration(-1)
	for _, path := range t.WaitPaths {
		for text := range p.body.All(path) {
			wait, ok := duration(text)
			if whole, billionths, isNumber := decimal(text); isNumber {
				wait, ok = span(whole, billionths, time.Second, MaxWait), true
			}
			if ok {
				longest = max(longest, min(wait, MaxWait))
			}
		}
	}
	if longest >= 0 {
		p.asked, p.hint.Limited, p.hint.Failed, p.hint.Retry, p.hint.RetryKnown = true, true, false, longest, true
	}
}

// apply applies what a case means.
func (p *parsed) apply(is Case) {
	h := &p.hint
	h.Where, h.Pause, h.Burns, h.Counts = is.Scope, is.Wait, is.Burns, is.Counts
	if is.Means == Fine || is.Means == Failed {
		h.Limited, h.Failed, h.Retry, h.RetryKnown = false, is.Means == Failed, 0, false
		return
	}
	h.Limited, h.Failed = true, false
	if !h.RetryKnown {
		p.refuse()
	}
}

// is reports whether an answer is a case.
func (p *parsed) is(c Case) bool {
	if !c.hasStatus(p.status) || !c.hasHeader(p.header) || c.Body != "" && !p.body.Contains(c.Body) {
		return false
	}
	if c.JSON == "" {
		return true
	}
	path, want, contains := c.JSON, "", true
	if at := strings.IndexAny(c.JSON, "=~"); at >= 0 {
		path, want, contains = c.JSON[:at], c.JSON[at+1:], c.JSON[at] == '~'
	}
	for value := range p.body.All(path) {
		if value == want || contains && strings.Contains(strings.ToLower(value), strings.ToLower(want)) {
			return true
		}
	}
	return false
}

func (c Case) hasStatus(status int) bool {
	return c.Status == status || c.Status == 0 && isError(status)
}

func (c Case) hasHeader(header http.Header) bool {
	if c.Header == "" {
		return true
	}
	name, text, _ := strings.Cut(c.Header, ":")
	text = strings.ToLower(strings.TrimSpace(text))
	return slices.ContainsFunc(header.Values(name), func(v string) bool { return strings.Contains(strings.ToLower(v), text) })
}
