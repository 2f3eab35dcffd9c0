// Package upstream reads what an API's HTTP answer says about its limits: when to come back, and how much of which quota is left.
//
// It knows Retry-After and its forms in milliseconds, RateLimit and RateLimit-Policy of the IETF draft
// (draft-ietf-httpapi-ratelimit-headers) in the current form and in earlier ones, the X-RateLimit family, quotas by unit (tokens,
// requests) and by window (minute, day), and some vendors' own fields: see docs/vendor.md. An implausible value never becomes a
// wait. The package does no I/O and has no clock.
package upstream

import (
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// MaxWait bounds Hint.Retry and Quota.Reset. A longer wait is cut to MaxWait, so MaxWait means "that long or longer".
const MaxWait = 31 * day

// MaxQuotas is the largest number of quotas in a Hint.
const MaxQuotas = 16

// Unknown is the Limit, Remaining or Reset of a Quota that the answer does not give.
const Unknown = -1

const day = 24 * time.Hour

// Hint is what one answer says about the API's limits. The zero Hint says nothing.
type Hint struct {
	// Host is the host that answered, HOST:PORT; see HostOf. Read leaves it empty: the caller then vouches for the answer.
	Host string
	// Sent is when the call was sent, by the local clock. Read leaves it zero: not known. A call that was in flight when a pause
	// of unknown length began does not end it.
	Sent time.Time
	// Unread says that the call succeeded and that its answer was not read: it ends a probe, and raises no limit. Read leaves it
	// false.
	Unread bool

	// Limited reports that the call was refused for a limit: a 429, or any other status from 400 to 599 with a Retry-After, or
	// with a quota that has nothing left until a reset; a quota of 1 has nothing left after each call, and does not count.
	Limited bool
	// Failed reports that the API failed: a status from 500 to 599 that is not Limited. A Table may say otherwise, as of Limited. Without a
	// Status no answer came at all.
	Failed bool
	// Status is the status of a refusal or a failure, 0 for other answers.
	Status int

	// Retry is the wait that the API asks for, from now: 0 to MaxWait, and meaningless unless RetryKnown. It comes from the
	// Retry-After of a Limited answer; without one that makes sense, it is the longest Reset of the quotas that have nothing
	// left.
	Retry      time.Duration
	RetryKnown bool

	// Names are the names that a Limited answer gives the limits that refused the call, at most 8 of 64 bytes: what a Table says,
	// the violated policies of a problem (RFC 9457), and otherwise the names of Quotas of which nothing is left.
	Names []string
	// Where, Pause, Burns and Counts are the Scope, Wait, Burns and Counts of the Case that the answer is; see there. Where may
	// come from Table.Reasons, too.
	Where  string
	Pause  time.Duration
	Burns  bool
	Counts bool
	// Costs are what the call has cost by unit, as far as the answer says; see Table.More.
	Costs map[string]int64
	// Usage says that the end of the body has what a call of a language model used, for package llm; see Table.Usage.
	Usage bool

	// Quotas are the limits that the answer gives, at most MaxQuotas: the IETF draft's first, then by unit, window and name.
	Quotas []Quota
}

// Quota is one limit of an answer. Limit or Remaining is known.
type Quota struct {
	// Name is the policy's name in the IETF draft, or the vendor's name of the limit ("core"). At most 64 bytes of printable ASCII.
	Name string

	// Unit is what is counted: "requests" by default, "tokens", "content-bytes". At most 64 bytes of a-z, 0-9, '-', '_' and '.'.
	Unit string

	Limit     int64         // units in a window, 1 to 2^53-1, or Unknown
	Remaining int64         // units left, 0 to 2^53-1, or Unknown; may exceed Limit
	Reset     time.Duration // from now until it is fully restored, 0 to MaxWait, or Unknown
	Window    time.Duration // length of the window, at most 366 days; 0 if not given

	// Rate says that Limit in Window is a rate, as Amazon's Selling Partner API gives: more calls may come at once.
	Rate bool

	// Source is the family of the header fields that gave the quota, for logs: "ratelimit" (the IETF draft), "x-ratelimit". At
	// most 64 bytes of printable ASCII.
	Source string
}

// Read reads an answer's status and header. Waits count from the answer's own Date if that is plausible, and otherwise from now.
//
// It neither keeps nor changes header, and is safe for concurrent use as long as no goroutine writes to header. An answer without
// any such field costs one pass over the header's names, about half a microsecond, and allocates nothing; one with them costs
// some microseconds. At most 64 fields are read, with at most 8 values of 1 KiB each.
func Read(status int, header http.Header, now time.Time) Hint {
	return Reader{}.Read(status, header, now)
}

// Read reads an answer as the function Read does, by what r says of its fields. Without a body, no Case with a Body or JSON matches.
func (r Reader) Read(status int, header http.Header, now time.Time) Hint {
	return r.read(status, header, nil, now)
}

// ReadResponse reads a whole answer. It looks at the first 4 KiB of the body, if a Table asks for that or the body is a problem
// (RFC 9457), and leaves the body as it was. It waits for these bytes. Compressed bodies are not looked at.
func (r Reader) ReadResponse(resp *http.Response, now time.Time) Hint {
	var body Body
	if r.wantsBody(resp.StatusCode, resp.Header) {
		body = peek(resp)
	}
	h := r.read(resp.StatusCode, resp.Header, body, now)
	if resp.Request != nil && resp.Request.URL != nil {
		h.Host = HostOf(resp.Request.URL)
	}
	return h
}

func (r Reader) read(status int, header http.Header, body Body, now time.Time) Hint {
	fields := collect(header)
	if len(fields) == 0 && len(r.Tables) == 0 && !isProblem(status, header) {
		return byStatus(status)
	}
	p := parsed{status: status, header: header, body: body, fields: fields, clock: r.clock(header, now), hint: byStatus(status)}
	if p.hint.Quotas = p.quotas(fields); isError(status) {
		p.refuse()
	}
	p.readTables(r.Tables)
	h := p.hint
	if h.Status = 0; h.Limited || h.Failed {
		h.Status = status
	}
	if !h.Limited {
		h.Names = nil
	} else if len(h.Names) == 0 {
		h.Names = exhausted(h.Quotas)
	}
	if h.Limited && h.Where == "" {
		h.Where = r.ScopeFor(h.Names)
	}
	return h
}

// byStatus returns what a status means alone.
func byStatus(status int) (h Hint) {
	h.Limited, h.Failed = status == http.StatusTooManyRequests, 500 <= status && status <= 599
	if h.Limited || h.Failed {
		h.Status = status
	}
	return h
}

// parsed is an answer that is being read.
type parsed struct {
	status int
	header http.Header
	body   Body
	fields []field
	clock
	hint  Hint
	asked bool // the header names the time to come back
}

// refuse reads whether an error says "later", whatever its status, and when to come back.
func (p *parsed) refuse() {
	h := &p.hint
	wait, known, asked := p.retry(p.fields)
	p.asked = known
	h.Limited = h.Limited || asked
	if !known {
		wait, known = longestReset(h.Quotas, h.Limited)
	}
	h.Limited = h.Limited || known
	h.Retry, h.RetryKnown, h.Failed = wait, known, h.Failed && !h.Limited
}

// exhausted returns the names of the quotas of which nothing is left.
func exhausted(quotas []Quota) (names []string) {
	for _, q := range quotas {
		if q.Remaining == 0 && q.Name != "" && len(names) < maxNames && !slices.Contains(names, q.Name) {
			names = append(names, q.Name)
		}
	}
	return names
}

// longestReset returns when the last of the exhausted quotas is fully restored. A quota of 1 counts only if the call was refused.
func longestReset(quotas []Quota, limited bool) (wait time.Duration, known bool) {
	for _, q := range quotas {
		if q.Remaining == 0 && q.Reset != Unknown && (limited || q.Limit != 1) {
			wait, known = max(wait, q.Reset), true
		}
	}
	return wait, known
}

// HostOf returns the host and port that a request to a URL goes to, HOST:PORT, as in Hint.Host.
func HostOf(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"https": "443", "http": "80"}[strings.ToLower(u.Scheme)]
	}
	return net.JoinHostPort(u.Hostname(), port)
}
