package outbound

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// BlockedError says that a task's host, its port, or all of its addresses may not be dialled, and how
// to allow it. Nothing was sent. It is returned with asynq.SkipRetry.
type BlockedError struct {
	Host    string     // as the URL names it, in ASCII; an IPv6 address in brackets
	Port    int        // the URL's, or its scheme's
	Address netip.Addr // the first one refused; invalid where Rule refused before the name was resolved
	Kind    string     // what Address is: "a private", "a loopback", …; empty where Rule refused
	Rule    string     // "-only-host", "-ports" or "-deny-cidr RANGE"; empty where Address is not public
}

func (e *BlockedError) Error() string {
	hostPort, is := fmt.Sprintf("%s:%d", e.Host, e.Port), e.Address.String()+", "
	if strings.Trim(e.Host, "[]") == e.Address.String() {
		is = ""
	}
	switch {
	case e.Rule == ruleOnly:
		return fmt.Sprintf("outbound: %s is not among the hosts that tasks may reach; if it is meant, start the worker with -only-host %s", hostPort, hostPort)
	case e.Rule == rulePorts:
		return fmt.Sprintf("outbound: tasks may not reach port %d of %s; if it is meant, add it to -ports of the worker", e.Port, e.Host)
	case e.Rule != "":
		return fmt.Sprintf("outbound: %s is %sin a range that tasks may not reach, whatever -allow-host says: %s", e.Host, is, e.Rule)
	}
	return fmt.Sprintf("outbound: %s is %s%s address, which tasks may not reach; if it is meant, start the worker with -allow-host %s",
		e.Host, is, e.Kind, hostPort)
}

const (
	ruleOnly  = "-only-host"
	rulePorts = "-ports"
	ruleDeny  = "-deny-cidr "
)

// errRefused is the guard's error to net.Dialer; it never leaves this file.
var errRefused = errors.New("address refused")

// dialer makes the connections of one Handler, behind the guard.
type dialer struct {
	reach reach
	tls   *tls.Config
	seams seams
}

func newDialer(r reach, s seams) *dialer {
	if s.refuse == nil {
		s.refuse = refusal
	}
	if s.own == nil {
		s.own = interfaceAddresses
	}
	return &dialer{r, &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}, RootCAs: s.roots}, s}
}

// visit is one dial. Its guard judges each resolved address at the moment at which the socket connects to
// it, so that no second answer of the resolver can differ from the address that was judged.
type visit struct {
	dialer *dialer
	host   string
	port   int

	mu      sync.Mutex    // two address families are dialled at once
	blocked *BlockedError // the first
	passed  bool
}

// guard is the Control function of the net.Dialer.
func (v *visit) guard(_, address string, _ syscall.RawConn) error {
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return errRefused
	}
	blocked, err := v.judge(ap.Addr().WithZone("").Unmap())
	v.mu.Lock()
	defer v.mu.Unlock()
	if blocked == nil {
		v.passed = true // also with an error: a later attempt may pass
		return err
	}
	if v.blocked == nil {
		v.blocked = blocked
	}
	return errRefused
}

// judge returns why an address must not be dialled, nil if it may.
func (v *visit) judge(addr netip.Addr) (*BlockedError, error) {
	blocked := &BlockedError{Host: v.name(), Port: v.port, Address: addr}
	if prefix, denied := v.dialer.reach.denies(addr); denied {
		blocked.Rule = ruleDeny + prefix.String()
		return blocked, nil
	}
	if v.dialer.reach.allow.has(v.host, v.port) {
		return nil, nil
	}
	if blocked.Kind = v.dialer.seams.refuse(addr); blocked.Kind != "" {
		return blocked, nil
	}
	own, err := v.dialer.seams.own()
	if err != nil {
		return nil, fmt.Errorf("the system does not list this machine's own addresses, which tasks may not reach: %w", err)
	}
	if slices.ContainsFunc(append(embedded(addr), addr), func(a netip.Addr) bool { return slices.Contains(own, a) }) {
		blocked.Kind = "this machine's own"
		return blocked, nil
	}
	return nil, nil
}

// name returns the host as a URL writes it.
func (v *visit) name() string {
	if strings.Contains(v.host, ":") {
		return "[" + v.host + "]"
	}
	return v.host
}

// judgeName judges what needs no address, so that a name that may not be reached is not even resolved.
func (v *visit) judgeName() error {
	switch r := v.dialer.reach; {
	case len(r.ports) > 0 && !r.ports[v.port]:
		return &BlockedError{Host: v.name(), Port: v.port, Rule: rulePorts}
	case len(r.only) > 0 && !r.only.has(v.host, v.port):
		return &BlockedError{Host: v.name(), Port: v.port, Rule: ruleOnly}
	}
	return nil
}

// dial is the transport's DialContext.
func (d *dialer) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	raw, err := d.dialRaw(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return newConn(raw), nil
}

// dialTLS is the transport's DialTLSContext. It makes the handshake itself so that conn sees the bytes
// of requests inside TLS, not its records.
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
		_ = raw.Close() // the handshake's error is the one to report
		if errors.Is(context.Cause(ctx), errHandshakeTimeout) {
			err = errHandshakeTimeout
		}
		return nil, fmt.Errorf("TLS handshake with %s: %w", host, err)
	}
	return newConn(secure), nil
}

var errHandshakeTimeout = fmt.Errorf("not done in %s", tlsHandshakeTimeout)

func (d *dialer) dialRaw(ctx context.Context, network, addr string) (net.Conn, error) {
	if p, ok := ctx.Value(permitKey{}).(*permit); ok && p.used() {
		return nil, errSentOnce // a replay: do not even connect for it
	}
	host, portText, err := net.SplitHostPort(addr)
	port, portErr := strconv.Atoi(portText)
	if err = errors.Join(err, portErr); err != nil {
		return nil, err
	}
	v := &visit{dialer: d, host: host, port: port}
	if err := v.judgeName(); err != nil {
		return nil, err
	}
	dialer := net.Dialer{Timeout: dialTimeout, Resolver: d.seams.resolver, Control: v.guard}
	raw, err := dialer.DialContext(ctx, network, addr)
	if err != nil {
		return nil, v.explain(err)
	}
	if d.seams.wrap != nil {
		raw = d.seams.wrap(raw)
	}
	return raw, nil
}

// explain converts a failed dial into a BlockedError if every address that was tried was refused. If
// one passed the guard and failed, a retry may succeed.
func (v *visit) explain(err error) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case v.blocked == nil:
		return err
	case v.passed:
		return fmt.Errorf("dial %s: no public address of this host answers", v.host)
	}
	return v.blocked
}
