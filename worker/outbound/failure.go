package outbound

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/hibiken/asynq"
)

// final is an error that no retry can cure. Its text is that of the error alone (asynq keeps the text
// of an archived task's last error), and it also wraps asynq.SkipRetry.
type final struct{ error }

func permanent(err error) error { return final{err} }

func (f final) Unwrap() []error { return []error{f.error, asynq.SkipRetry} }

// noAnswer is a failure before any answer came. Its text is safe; the causes it wraps are of types
// whose text contains nothing of the request.
type noAnswer struct {
	text   string
	causes []error
}

func (e *noAnswer) Error() string   { return e.text }
func (e *noAnswer) Unwrap() []error { return e.causes }

// failure returns the error of a request that got no answer.
func failure(ctx context.Context, c *call, err error, after time.Duration) error {
	var blocked *BlockedError
	switch {
	case errors.As(err, &blocked):
		return permanent(blocked)
	case errors.Is(err, errSentOnce):
		return &noAnswer{text: fmt.Sprintf("outbound: %s: %s", c.target(), errSentOnce)}
	case ctx.Err() != nil:
		return ended(ctx, c, after)
	}
	causes := harmless(err)
	return &noAnswer{
		text:   fmt.Sprintf("outbound: %s: no answer: %s", c.target(), c.reason(ctx, err, causes)),
		causes: causes,
	}
}

// reason returns err's text without secrets. Errors of net/http quote an answer that is not HTTP,
// which may quote the request.
func (c *call) reason(ctx context.Context, err error, harmless []error) string {
	const maxText = 300
	text, notShown := c.hide(ctx, err.Error(), false)
	if notShown == nil {
		return clean(text, maxText)
	}
	if len(harmless) > 0 {
		return clean(harmless[0].Error(), maxText)
	}
	return "[not shown: " + notShown.Error() + "]"
}

// ended returns the error of a run whose ctx ended. errors.Is finds ctx's error and its cause.
func ended(ctx context.Context, c *call, after time.Duration) error {
	e := &noAnswer{causes: []error{ctx.Err()}}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		e.text = fmt.Sprintf("outbound: timed out after %s waiting for %s", legible(after), c.target())
	} else {
		e.text = fmt.Sprintf("outbound: cancelled after %s waiting for %s", legible(after), c.target())
	}
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

// harmless returns the errors in err's chain that callers may want to test for.
func harmless(err error) []error {
	var causes []error
	var op *net.OpError
	var dns *net.DNSError
	var cert *tls.CertificateVerificationError
	switch {
	case errors.As(err, &op):
		causes = append(causes, op)
	case errors.As(err, &dns):
		causes = append(causes, dns)
	case errors.As(err, &cert):
		causes = append(causes, cert)
	}
	return causes
}
