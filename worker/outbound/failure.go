package outbound

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/hibiken/asynq"
)

// permanent is an error that no retry can cure. It wraps asynq.SkipRetry, whose text is not in its own.
type permanent struct{ error }

func (p permanent) Unwrap() []error { return []error{p.error, asynq.SkipRetry} }

// noAnswer is a failure before any answer came. Its text is safe; the causes it wraps are of types
// whose text contains nothing of the request.
type noAnswer struct {
	text   string
	causes []error
	api    bool // it is the API's, and not that of this process or of its own rules
}

// CallFailed implements worker.CallFailer.
func (e *noAnswer) CallFailed() bool { return e.api }

func (e *noAnswer) Error() string   { return e.text }
func (e *noAnswer) Unwrap() []error { return e.causes }

// failure returns the error of a request that got no answer.
func failure(ctx context.Context, c *call, err error, after time.Duration) error {
	var blocked *BlockedError
	switch {
	case errors.As(err, &blocked):
		return permanent{blocked}
	case errors.Is(err, errSentOnce):
		return &noAnswer{text: fmt.Sprintf("outbound: %s: %s", c.target(), errSentOnce), api: true}
	case ctx.Err() != nil:
		return ended(ctx, c, after)
	}
	causes := harmless(err)
	return &noAnswer{fmt.Sprintf("outbound: %s: no answer: %s", c.target(), c.reason(err, causes)), causes, true}
}

// reason returns err's text without secrets. Errors of net/http quote an answer that is not HTTP, which may quote the request.
func (c *call) reason(err error, harmless []error) string {
	const maxText = 300
	text, notShown := c.hide(err.Error(), false)
	switch {
	case notShown == nil:
		return clean(text, maxText)
	case len(harmless) > 0:
		return clean(harmless[0].Error(), maxText)
	}
	return "[not shown: " + notShown.Error() + "]"
}

// ended returns the error of a run whose ctx ended. errors.Is finds ctx's error and its cause.
func ended(ctx context.Context, c *call, after time.Duration) error {
	how := "cancelled"
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		how = "timed out"
	}
	e := &noAnswer{fmt.Sprintf("outbound: %s after %s waiting for %s", how, legible(after), c.target()), []error{ctx.Err()}, how == "timed out"}
	if cause := context.Cause(ctx); !errors.Is(ctx.Err(), cause) {
		e.causes = append(e.causes, cause)
		e.text += ": " + clean(cause.Error(), 200)
	}
	return e
}

// legible rounds to three digits: a run of 10 s ends after 10.0004 s.
func legible(d time.Duration) time.Duration {
	unit := time.Nanosecond
	for d/unit >= 1000 {
		unit *= 10
	}
	return d.Round(unit)
}

// harmless returns the error in err's chain that callers may want to test for, if there is one.
func harmless(err error) []error {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return []error{op}
	}
	if dns, ok := errors.AsType[*net.DNSError](err); ok {
		return []error{dns}
	}
	if cert, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return []error{cert}
	}
	return nil
}

// clean makes foreign text fit for one line of a log: valid UTF-8, white space as single spaces, each
// run of other unprintable characters as one U+FFFD, at most limit bytes.
func clean(s string, limit int) string {
	var b strings.Builder
	last := ' ' // so that leading space is removed
	for _, r := range s {
		switch {
		case unicode.IsSpace(r):
			r = ' '
		case !unicode.IsPrint(r):
			r = utf8.RuneError
		}
		if r == last && (r == ' ' || r == utf8.RuneError) {
			continue
		}
		if b.Len()+utf8.RuneLen(r) > limit {
			break
		}
		b.WriteRune(r)
		last = r
	}
	return strings.TrimRight(b.String(), " ")
}
