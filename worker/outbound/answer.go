package outbound

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/headway-go/headway/throttle/upstream"
)

// StatusError says that the API answered, and not with 2xx.
//
// 408, 425 and 5xx are failures that asynq retries; a 429, and a 503 with a Retry-After, are
// none, and burn no attempt. Any other status comes
// with asynq.SkipRetry: the same request would get the same answer. Redirects
// are among those, they are not followed.
type StatusError struct {
	Status     int
	RetryAfter time.Duration // what the answer asks for, at most 24h; -1 if it asks for nothing
	Snippet    string        // the answer's first bytes: one line, printable, secrets replaced by [redacted]; or why they are not shown

	target string
}

// RetryIn tells worker.Config when the API asked to be called again.
func (e *StatusError) RetryIn() (wait time.Duration, asked bool) {
	return e.RetryAfter, e.RetryAfter > 0
}

// DeferBy tells package worker that the API is limited itself: a 429, or a 503 that says
// when to come back. That burns no attempt.
func (e *StatusError) DeferBy() (wait time.Duration, known, deferred bool) {
	known = e.RetryAfter >= 0
	return max(0, e.RetryAfter), known,
		e.Status == http.StatusTooManyRequests || e.Status == http.StatusServiceUnavailable && known
}

func (e *StatusError) Error() string {
	var b strings.Builder
	b.WriteString("outbound: ")
	if e.target != "" {
		b.WriteString(e.target + " ")
	}
	fmt.Fprintf(&b, "answered %d", e.Status)
	if text := http.StatusText(e.Status); text != "" {
		b.WriteString(" " + text)
	}
	if 300 <= e.Status && e.Status <= 399 {
		b.WriteString(" (redirects are not followed)")
	}
	if e.RetryAfter >= 0 {
		fmt.Fprintf(&b, " (retry after %s)", e.RetryAfter)
	}
	if e.Snippet != "" {
		b.WriteString(": " + e.Snippet)
	}
	return b.String()
}

// retried reports whether the same request may get another answer later.
func retried(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	}
	return 500 <= status && status <= 599
}

// answer judges resp by its status alone, and reads its body so far that the
// connection can be used again. A body that breaks off, or outlasts the run's
// time, changes nothing: the API has said what became of the request, and to
// send a charge again because its receipt was cut short would be the worse fault.
func (h *Handler) answer(ctx context.Context, c *call, resp *http.Response) error {
	defer func() { _ = resp.Body.Close() }()
	if 200 <= resp.StatusCode && resp.StatusCode <= 299 {
		_, _ = io.CopyN(io.Discard, resp.Body, h.maxResponse)
		return nil
	}
	err := &StatusError{
		Status:     resp.StatusCode,
		RetryAfter: retryAfter(resp, time.Now()),
		target:     c.target(),
	}
	if resp.StatusCode != http.StatusSwitchingProtocols { // its body is the bare connection, which no ctx ends
		err.Snippet = h.readSnippet(ctx, c, resp)
	}
	if retried(resp.StatusCode) {
		return err
	}
	return permanent(err)
}

// beyondSnippet is how much more is read than shown, so that a secret is found whole
// where the cut would go through it, and what it leaves room for is there.
const beyondSnippet = 1024

func (h *Handler) readSnippet(ctx context.Context, c *call, resp *http.Response) string {
	most := min(int64(h.snippet)+beyondSnippet, h.maxResponse)
	first, _ := io.ReadAll(io.LimitReader(resp.Body, most))
	_, _ = io.CopyN(io.Discard, resp.Body, h.maxResponse-int64(len(first)))
	if len(first) == 0 {
		return ""
	}
	if enc := resp.Header.Get("Content-Encoding"); enc != "" && !strings.EqualFold(enc, "identity") {
		return "[compressed body, not shown]" // no secret could be found in it
	}
	shown, err := c.hide(ctx, string(first), int64(len(first)) == most)
	if err != nil {
		return "[not shown: " + err.Error() + "]"
	}
	return clean(shown, h.snippet)
}

const maxRetryAfter = 24 * time.Hour

// retryAfter is what an answer asks for, at most 24h, and -1 where it asks for nothing.
func retryAfter(resp *http.Response, now time.Time) time.Duration {
	advice := upstream.Read(resp.StatusCode, resp.Header, now)
	if !advice.RetryKnown {
		return -1
	}
	return min(advice.Retry, maxRetryAfter)
}
