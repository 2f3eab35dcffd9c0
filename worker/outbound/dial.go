package outbound

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
)

// BlockedError says that a task's host has no address that may be dialled, and
// how to allow it. Nothing was sent. It comes with asynq.SkipRetry.
type BlockedError struct {
	Host    string     // as the URL names it
	Address netip.Addr // the first one refused
	Kind    string     // "a private", "a loopback", …
}

func (e *BlockedError) Error() string {
	is := e.Address.String() + ", "
	if strings.Trim(e.Host, "[]") == e.Address.String() {
		is = ""
	}
	return fmt.Sprintf("outbound: %s is %s%s address, which tasks may not reach; if it is meant, start the worker with -allow-host %s",
		e.Host, is, e.Kind, e.Host)
}

// errRefused is what the guard tells net.Dialer; it never leaves this file.
var errRefused = errors.New("address refused")

// dialer makes the connections of one Handler, past the address guard.
type dialer struct {
	net    net.Dialer
	allow  allowed
	refuse func(netip.Addr) string
	tls    *tls.Config
	seams  seams
}

func newDialer(allow allowed, s seams) *dialer {
	d := &dialer{
		allow:  allow,
		refuse: refusal,
		tls:    &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}, RootCAs: s.roots},
		seams:  s,
	}
	if s.refuse != nil {
		d.refuse = s.refuse
	}
	d.net = net.Dialer{Timeout: dialTimeout, Resolver: s.resolver, ControlContext: guard}
	return d
}

// visit is what the guard sees while one host is dialled: each address that the
// resolver gave, at the moment the socket connects to it, so that a second
// answer of the resolver cannot differ from the one that was judged.
type visit struct {
	refuse func(netip.Addr) string // nil: the host was allowed by name

	mu      sync.Mutex // two families are dialled at once
	blocked netip.Addr
	kind    string
	passed  bool
}

type visitKey struct{}

func guard(ctx context.Context, _, address string, _ syscall.RawConn) error {
	v, ok := ctx.Value(visitKey{}).(*visit)
	if !ok {
		return errRefused
	}
	if v.refuse == nil {
		return nil
	}
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return errRefused
	}
	kind := v.refuse(ap.Addr())
	v.mu.Lock()
	defer v.mu.Unlock()
	if kind == "" {
		v.passed = true
		return nil
	}
	if !v.blocked.IsValid() {
		v.blocked, v.kind = ap.Addr(), kind
	}
	return errRefused
}

// dial is the transport's DialContext.
func (d *dialer) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	raw, err := d.dialRaw(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return newConn(raw), nil
}

// dialTLS is the transport's DialTLSContext. The handshake is made here so that
// conn sees what is inside TLS: a request's bytes, no records.
func (d *dialer) dialTLS(ctx context.Context, network, addr string) (net.Conn, error) {
	raw, err := d.dialRaw(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, errors.Join(err, raw.Close())
	}
	cfg := d.tls.Clone()
	cfg.ServerName = host
	ctx, cancel := context.WithTimeoutCause(ctx, tlsHandshakeTimeout, errHandshakeTimeout)
	defer cancel()
	secure := tls.Client(raw, cfg)
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = raw.Close() // the handshake's error is the one to tell
		if errors.Is(context.Cause(ctx), errHandshakeTimeout) {
			err = errHandshakeTimeout
		}
		return nil, fmt.Errorf("TLS handshake with %s: %w", host, err)
	}
	if d.seams.tls != nil {
		state := secure.ConnectionState()
		d.seams.tls(&state)
	}
	return newConn(secure), nil
}

var errHandshakeTimeout = fmt.Errorf("not done in %s", tlsHandshakeTimeout)

func (d *dialer) dialRaw(ctx context.Context, network, addr string) (net.Conn, error) {
	if p, ok := ctx.Value(permitKey{}).(*permit); ok && p.used() {
		return nil, errSentOnce // a replay: not even a connection is made for it
	}
	v := &visit{refuse: d.refuse}
	if d.allow.has(addr) {
		v.refuse = nil
	}
	raw, err := d.net.DialContext(context.WithValue(ctx, visitKey{}, v), network, addr)
	if err != nil {
		return nil, v.explain(addr, err)
	}
	if d.seams.wrap != nil {
		raw = d.seams.wrap(raw)
	}
	return raw, nil
}

// explain turns a failed dial into a BlockedError when every address that was
// tried was refused. Where one passed the guard and failed, it may come back.
func (v *visit) explain(addr string, err error) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.blocked.IsValid() {
		return err
	}
	host, _, _ := net.SplitHostPort(addr)
	if v.passed {
		return fmt.Errorf("dial %s: no public address of this host answers", host)
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return &BlockedError{Host: host, Address: v.blocked.WithZone(""), Kind: v.kind}
}
