package redisopen

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"strings"
	"syscall"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/diag"
)

// Explain says what err, returned by a Redis command or a script, means and what to do about it, as a *diag.Error that wraps err. url
// is the one given to Open. A context's error and nil are returned as they are.
func Explain(err error, url string) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	t, perr := parseRedisURL(url)
	if perr != nil {
		t = &target{name: "the given URL"}
	}
	return t.explain(err)
}

func (t *target) explain(err error) error {
	what, try := t.sentinelFault(err)
	if what == "" {
		what, try = t.answer(err)
	}
	if what == "" {
		what, try = t.transport(err)
	}
	return &diag.Error{What: what, Try: try, Err: err}
}

// replies are the errors that a server answers with, by the words they start
// with. %s is the server's name. The first that fits is used.
var replies = []struct {
	prefixes  []string
	what, try string
}{
	{[]string{"NOAUTH"}, "Redis at %s needs a password",
		"-redis redis://:PASSWORD@HOST:PORT, or the same in REDIS_URL, which keeps it out of the process list"},
	{[]string{"WRONGPASS", "ERR invalid password"}, "Redis at %s refuses the user name or password", "check both in the URL; " + tryEscape},
	{[]string{"ERR AUTH <password> called without any password configured", "ERR Client sent AUTH, but no password is set"},
		"Redis at %s has no password, and the URL gives one", "leave it out of the URL, or set one on the server (requirepass)"},
	{[]string{"NOPERM", "ERR The user executing the script", "ERR ACL failure in script"}, "Redis at %s refuses its user a command or a key that is needed",
		"give the user the ACL rules of docs/operations.md (redis-cli ACL SETUSER …; ACL LOG shows what was refused)"},
	{[]string{"READONLY", "MASTERDOWN"}, "Redis at %s is a read-only replica",
		"the master's address, or redis-sentinel://…?master=NAME, which finds it and follows it"},
	{[]string{"WRONGTYPE"}, "a key of asynq or Headway holds another program's data in Redis at %s", "use a database of its own (redis://HOST:PORT/1)"},
	{[]string{"LOADING"}, "Redis at %s is still loading its data from disk", "try again in a moment; redis-cli INFO persistence shows the progress"},
	{[]string{"OOM"}, "Redis at %s is full: it refuses writes",
		"raise maxmemory (redis-cli CONFIG SET maxmemory …) or make room; maxmemory-policy must stay noeviction"},
	{[]string{"MISCONF"}, "Redis at %s cannot save to disk and refuses writes",
		"make room on its disk, or see its log; redis-cli INFO persistence shows the last error"},
	{[]string{"NOREPLICAS"}, "Redis at %s has too few replicas and refuses writes", "bring its replicas back, or lower min-replicas-to-write"},
	{[]string{"CLUSTERDOWN"}, "Redis Cluster at %s is down: not all slots are served", "redis-cli CLUSTER INFO shows which nodes are missing"},
	{[]string{"MOVED", "ERR SELECT is not allowed in cluster mode"}, "Redis at %s is a node of a cluster, and the URL is for a single server",
		"-redis redis+cluster://HOST:PORT"},
	{[]string{"ERR This instance has cluster support disabled"}, "Redis at %s is a single server, and the URL is for a cluster", "-redis redis://HOST:PORT"},
	{[]string{"ERR DB index is out of range", "ERR invalid DB index"}, "Redis at %s does not have the database number of the URL",
		"use a smaller number at the end of the URL, or raise databases in redis.conf"},
	{[]string{"ERR max number of clients"}, "Redis at %s has no connection left", "raise maxclients on the server, or add ?pool_size=N to the URL"},
	{[]string{"DENIED"}, "Redis at %s is in protected mode and refuses other machines", "set a password on the server (requirepass) and give it in the URL"},
}

// answer explains an error that Redis itself replied with; "" when it is none. go-redis wraps some of them in
// plain text ("failed to authenticate: WRONGPASS …").
func (t *target) answer(err error) (what, try string) {
	reply, is := errors.AsType[redis.Error](err)
	for _, r := range replies {
		for _, prefix := range r.prefixes {
			if is && strings.HasPrefix(reply.Error(), prefix) || !is && strings.Contains(err.Error(), prefix+" ") {
				return strings.Replace(r.what, "%s", t.name, 1), t.advise(prefix, r.try)
			}
		}
	}
	if is {
		return "Redis at " + t.name + " answered: " + reply.Error(), ""
	}
	return "", ""
}

// advise makes the advice fit the URL that was given.
func (t *target) advise(prefix, try string) string {
	switch {
	case prefix == "NOAUTH" && t.sentinel != nil:
		return "redis-sentinel://[SENTINEL-USER:SENTINEL-PASSWORD@]HOST:PORT/DB?master=NAME&username=U&password=P: " +
			"the part before @ is for the sentinels, the options are for the master"
	case prefix == "NOAUTH" && t.user != "" && t.password == "":
		return "redis://:PASSWORD@HOST:PORT, with a colon: without one, the part before @ is the user name"
	}
	return try
}

// transport explains an error of the way to Redis.
func (t *target) transport(err error) (what, try string) {
	var (
		dns     *net.DNSError
		op      *net.OpError
		record  tls.RecordHeaderError
		unknown x509.UnknownAuthorityError
		name    x509.HostnameError
		cert    *tls.CertificateVerificationError
	)
	at := "Redis at " + t.name
	switch {
	case errors.As(err, &unknown), errors.As(err, &name), errors.As(err, &cert):
		return at + " has a TLS certificate that cannot be verified: " + rootText(err),
			"the name in the certificate as HOST, its CA in SSL_CERT_FILE, or ?skip_verify=true to trust it blindly"
	case errors.As(err, &record):
		return at + " does not speak TLS", "redis:// instead of rediss://"
	case errors.As(err, &dns):
		return "no address is known for the host of " + t.name, "check the spelling of HOST in the URL"
	case errors.Is(err, fs.ErrNotExist):
		return "there is no socket " + t.name, "check the path (redis-cli CONFIG GET unixsocket)"
	case errors.Is(err, fs.ErrPermission):
		return "no permission to open " + t.name, "add this user to the socket's group, or set unixsocketperm"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "nothing listens at " + t.name, t.tryStart()
	case isTimeout(err) && t.tls: // Redis takes a TLS greeting for half a command
		return at + " did not answer in time", t.tryOtherProtocol()
	case isTimeout(err):
		return at + " did not answer in time",
			"check HOST and PORT, a firewall between, and that the server is not stuck (redis-cli PING)"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET):
		return at + " closed the connection without an answer", t.tryOtherProtocol()
	case strings.Contains(err.Error(), "can't parse"), strings.Contains(err.Error(), "invalid reply"):
		return "the server at " + t.name + " does not answer like Redis", t.tryOtherProtocol()
	case errors.As(err, &op):
		return at + " cannot be reached: " + rootText(op.Err), t.tryStart()
	}
	return at + ": " + rootText(err), ""
}

// sentinelFault explains an error of the sentinels; "" when it is none.
func (t *target) sentinelFault(err error) (what, try string) {
	text := err.Error()
	switch {
	case !strings.Contains(text, "sentinels specified in configuration are unreachable"):
		return "", ""
	case strings.Contains(text, "redis: nil"):
		return "the sentinels do not know " + t.name, "the name that sentinel monitor has in sentinel.conf, as ?master=NAME"
	case strings.Contains(text, "AUTH"), strings.Contains(text, "WRONGPASS"), strings.Contains(text, "NOPERM"):
		return "the sentinels refuse the user name or password for " + t.name,
			"the sentinels' own before @, the master's as ?username=…&password=…"
	}
	return "none of the sentinels can be reached: " + t.name, "check their addresses; their port is 26379 unless set otherwise"
}

func (t *target) tryStart() string {
	if t.name == EmbeddedAddr {
		return "start a worker first (worker -limits limits.yaml), whose embedded server this is, or give -redis URL"
	}
	return "start it (redis-server), or check HOST and PORT in the URL"
}

func (t *target) tryOtherProtocol() string {
	if t.tls {
		return "redis:// instead of rediss://, if the server has no TLS on that port; check PORT"
	}
	return "rediss:// instead of redis://, if the server wants TLS; check PORT"
}

func isTimeout(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) ||
		errors.Is(err, redis.ErrPoolTimeout) || errors.As(err, &timeout) && timeout.Timeout()
}

// rootText returns the innermost text of err, without the layers above it.
func rootText(err error) string {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err.Error()
		}
		err = inner
	}
}
