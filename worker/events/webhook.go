package events

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/worker/outbound"
)

// Webhook receives each event as a POST of JSON, signed with a secret; see Verify. A process delivers one event after the other. After no
// answer, or one other than 2xx, it tries again with growing pauses, eight times in about four minutes; but not after 300 to 499 other
// than 408, 425 and 429. It does not follow redirects. All processes together send 60 requests a minute, in bursts of ten.
type Webhook struct {
	// URL is where events are sent: https, or http to this machine's own loopback address, without user and password.
	URL string
	// Secret signs the requests, 16 characters or more. It is never logged.
	Secret string
	// AllowHosts lists hosts, as outbound.Config.AllowHosts, that are called although their address is private. A loopback host in URL
	// needs no entry. Defaults to none.
	AllowHosts []string
}

const (
	maxQueued   = 100 // events that wait for delivery
	minSecret   = 16
	attempts    = 8
	firstPause  = time.Second
	mostPause   = time.Minute
	lastWords   = 3 * time.Second // for what is queued when the process stops
	webhookName = "headway:webhook"
)

type webhook struct {
	cfg     Webhook
	process *process
	host    string
	handler *outbound.Handler
	timeout time.Duration // of a request
	queue   chan Event
}

// newWebhook returns an error that names the field and neither the secret nor more of the URL than its host.
func newWebhook(cfg Webhook, p *process) (*webhook, error) {
	w := &webhook{cfg: cfg, process: p, timeout: 10 * time.Second, queue: make(chan Event, maxQueued)}
	var faults []error
	if len(cfg.Secret) < minSecret {
		faults = append(faults, fmt.Errorf("events: Webhook.Secret has %d characters; %d are needed", len(cfg.Secret), minSecret))
	}
	u, err := url.Parse(cfg.URL)
	switch {
	case err != nil || u.Hostname() == "":
		return nil, errors.Join(append(faults, errors.New("events: Webhook.URL is no URL; write https://HOST/PATH"))...)
	case u.User != nil:
		faults = append(faults, fmt.Errorf("events: Webhook.URL of %s has a user or a password; the requests are signed with Secret instead", u.Host))
	case u.Scheme != "https" && (u.Scheme != "http" || !isLoopback(u.Hostname())):
		faults = append(faults, fmt.Errorf("events: Webhook.URL of %s is not https; http is only for a loopback address", u.Host))
	}
	w.host = u.Host
	hosts := cfg.AllowHosts
	if isLoopback(u.Hostname()) {
		hosts = append(hosts[:len(hosts):len(hosts)], u.Host)
	}
	if w.handler, err = outbound.New(outbound.Config{AllowHosts: hosts, UserAgent: "headway-events"}); err != nil {
		faults = append(faults, fmt.Errorf("events: Webhook.AllowHosts: %w", err))
	}
	return w, errors.Join(faults...)
}

func isLoopback(host string) bool {
	if strings.EqualFold(strings.TrimSuffix(host, "."), "localhost") {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// put takes an event for delivery. It does not block.
func (w *webhook) put(e Event) {
	select {
	case w.queue <- e:
	default:
		w.process.observer.EventDelivery("dropped")
	}
}

// run delivers events until the queue is closed. When ctx has ended each gets one more attempt, for some seconds in all.
func (w *webhook) run(ctx context.Context, rdb redis.UniversalClient) {
	defer w.handler.Close()
	limiter, err := w.limiter(rdb)
	if err != nil {
		w.process.log.ErrorContext(ctx, "cannot limit the webhook; no event is sent to it", "host", w.host, "error", err)
		return
	}
	last, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(lastWords, cancel) })()
	for e := range w.queue {
		w.deliver(ctx, last, limiter, e)
	}
}

// limiter returns the limit of the webhook, which all processes share. Without Redis it is open: events matter most in an outage.
func (w *webhook) limiter(rdb redis.UniversalClient) (*throttle.Limiter, error) {
	p, err := policy.Single(webhookName, policy.Rule{
		Name: "deliveries", Algorithm: policy.TokenBucket, Limit: 60, Per: time.Minute, Burst: 10, OnRedisError: policy.FailOpen,
	})
	if err != nil {
		return nil, err
	}
	return throttle.New(rdb, p, throttle.Config{Prefix: w.process.prefix})
}

// deliver sends an event until it is accepted or given up: after the end of ctx there is no further attempt, and the end of last ends
// the one under way.
func (w *webhook) deliver(ctx, last context.Context, limiter *throttle.Limiter, e Event) {
	body, err := json.Marshal(e)
	if err != nil {
		w.failed(ctx, e, 0, err)
		return
	}
	for n := 1; ; n++ {
		if _, err := limiter.Wait(last, throttle.Request{Scope: webhookName}); err != nil {
			w.failed(ctx, e, n-1, err)
			return
		}
		err := w.send(last, e, body)
		if err == nil {
			w.process.observer.EventDelivery("delivered")
			return
		}
		if n == attempts || errors.Is(err, asynq.SkipRetry) || ctx.Err() != nil {
			w.failed(ctx, e, n, err)
			return
		}
		w.process.observer.EventDelivery("retried")
		sleep(ctx, pause(n, err)) // after its end, the last attempt follows
	}
}

// pause returns the time before the next attempt: twice as long each time, or as long as the answer asks for, at most a minute.
func pause(n int, err error) time.Duration {
	wait := min(firstPause<<(n-1), mostPause)
	if status, is := errors.AsType[*outbound.StatusError](err); is {
		wait = min(max(wait, status.RetryAfter), mostPause)
	}
	return wait + rand.N(wait/10+1)
}

// send makes one request, as tasks make theirs: addresses are guarded, redirects are not followed, and nothing is sent twice.
func (w *webhook) send(ctx context.Context, e Event, body []byte) error {
	ctx, cancel := context.WithTimeout(ctx, w.timeout)
	defer cancel()
	request, err := json.Marshal(map[string]any{
		"method": http.MethodPost, "url": w.cfg.URL, "body": string(body),
		"headers": map[string]string{
			"Content-Type": "application/json", HeaderEvent: string(e.Kind), HeaderEventID: e.ID,
			HeaderSignature: sign(w.cfg.Secret, body, time.Now()),
		},
	})
	if err != nil {
		return err
	}
	return w.handler.ProcessTask(ctx, asynq.NewTask("http", request))
}

// failed logs an event that was not delivered, without the URL's path and the answer's text, which may contain secrets.
func (w *webhook) failed(ctx context.Context, e Event, tries int, err error) {
	w.process.observer.EventDelivery("failed")
	w.process.log.WarnContext(ctx, "the webhook does not accept an event", "host", w.host, "kind", string(e.Kind), "event_id", e.ID,
		"attempts", tries, "why", w.why(err))
}

func (w *webhook) why(err error) string {
	if status, is := errors.AsType[*outbound.StatusError](err); is {
		return fmt.Sprintf("it answered %d", status.Status)
	}
	if blocked, is := errors.AsType[*outbound.BlockedError](err); is {
		return blocked.Error()
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return "no answer within " + w.timeout.String()
	case errors.Is(err, context.Canceled):
		return "the process stopped"
	}
	// These name a host and never a path.
	if cause, is := errors.AsType[*net.OpError](err); is {
		return cause.Error()
	}
	if cause, is := errors.AsType[*net.DNSError](err); is {
		return cause.Error()
	}
	if cause, is := errors.AsType[*tls.CertificateVerificationError](err); is {
		return cause.Error()
	}
	return "no answer"
}
