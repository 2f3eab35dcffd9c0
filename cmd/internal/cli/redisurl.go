package cli

import (
	"cmp"
	"crypto/tls"
	"errors"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Where a worker's embedded server listens, and the URL that reaches it.
const (
	EmbeddedAddr = "127.0.0.1:6390"
	EmbeddedURL  = "redis://" + EmbeddedAddr
)

// target is a Redis URL taken apart. One of the three options is set.
type target struct {
	name     string // host:port, socket or master: what an error may show
	user     string
	password bool
	tls      bool

	single   *redis.Options
	sentinel *redis.FailoverOptions
	cluster  *redis.ClusterOptions
}

const (
	tryURL = "-redis redis://[USER:PASSWORD@]HOST:PORT[/DB], rediss://…, unix:///path/redis.sock, " +
		"redis-sentinel://HOST:PORT,HOST:PORT/DB?master=NAME or redis+cluster://HOST:PORT?addr=HOST:PORT"
	tryEscape = "percent-encode special characters in the user name and password: @ is %40, / is %2F, : is %3A, " +
		"# is %23, ? is %3F, % is %25"
)

// parts of scheme://userinfo@hosts/path?query, cut by hand: net/url refuses
// lists of hosts, and its errors quote the text they stumble on, which may be
// a password.
type parts struct {
	scheme, hosts, path, query string
	user, password             string
	hasPassword                bool
}

func parseRedisURL(raw string) (*target, error) {
	p, err := splitURL(raw)
	if err != nil {
		return nil, err
	}
	switch p.scheme {
	case "redis", "rediss":
		return p.singleTarget()
	case "unix", "redis-socket":
		return p.socketTarget()
	case "redis-sentinel", "rediss-sentinel", "redis+sentinel", "rediss+sentinel":
		return p.sentinelTarget()
	case "redis+cluster", "rediss+cluster", "redis-cluster", "rediss-cluster":
		return p.clusterTarget()
	}
	return nil, Errorf(tryURL, "the Redis URL has the unknown scheme %q", p.scheme)
}

func splitURL(raw string) (parts, error) {
	scheme, rest, ok := strings.Cut(strings.TrimSpace(raw), "://")
	if !ok || scheme == "" || strings.ContainsAny(scheme, "@:/?#") {
		return parts{}, Errorf(tryURL, "the Redis URL has no scheme, such as redis://")
	}
	p := parts{scheme: strings.ToLower(scheme)}
	if strings.ContainsAny(rest, "#\r\n\t ") {
		return parts{}, Errorf(tryEscape, "the Redis URL cannot be read: it holds a # or white space")
	}
	rest, p.query, _ = strings.Cut(rest, "?")
	authority, path, _ := strings.Cut(rest, "/")
	p.path = path
	if strings.Contains(path, "@") || strings.Contains(p.query, "@") {
		return parts{}, Errorf(tryEscape, "the Redis URL cannot be read: an @ stands where no user or password can end")
	}
	p.hosts = authority
	if i := strings.LastIndexByte(authority, '@'); i >= 0 {
		p.hosts = authority[i+1:]
		user, password, has := strings.Cut(authority[:i], ":")
		var uerr, perr error
		p.user, uerr = url.PathUnescape(user)
		p.password, perr = url.PathUnescape(password)
		p.hasPassword = has && p.password != ""
		if uerr != nil || perr != nil {
			return parts{}, Errorf(tryEscape, "the user name or password in the Redis URL cannot be decoded")
		}
	}
	return p, nil
}

// addresses returns the hosts as host:port, with port where none is given.
func (p parts) addresses(port string) ([]string, error) {
	var addrs []string
	for host := range strings.SplitSeq(p.hosts, ",") {
		addr, err := address(host, port)
		if err != nil {
			return nil, err
		}
		addrs = append(addrs, addr)
	}
	return addrs, nil
}

// address checks one HOST, HOST:PORT or [IPv6]:PORT. It quotes nothing: what
// stands at the place of a port may be a password whose host was forgotten.
func address(s, port string) (string, error) {
	host, given, err := net.SplitHostPort(s)
	switch {
	case err == nil:
		port = given
	case strings.Contains(s, ":") && !strings.HasPrefix(s, "["):
		return "", Errorf(tryURL, "the Redis URL has a host that is not HOST:PORT (IPv6 addresses need brackets)")
	default:
		host = strings.TrimSuffix(strings.TrimPrefix(s, "["), "]")
	}
	if host == "" {
		host = "localhost"
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return "", Errorf(tryURL, "the Redis URL has a port that is not a number from 1 to 65535")
	}
	return net.JoinHostPort(host, port), nil
}

// plain returns a URL that go-redis parses, free of credentials so that its
// errors are free of them too.
func (p parts) plain(addr string, query string) string {
	scheme := "redis"
	if p.secure() {
		scheme = "rediss"
	}
	u := scheme + "://" + addr + "/" + p.path
	if query != "" {
		u += "?" + query
	}
	return u
}

func (p parts) secure() bool { return strings.HasPrefix(p.scheme, "rediss") }

// refused says what go-redis did not like about a URL without credentials.
func refused(err error) error {
	var parse *url.Error
	if errors.As(err, &parse) {
		err = parse.Err
	}
	return &Error{What: "the Redis URL: " + strings.TrimPrefix(err.Error(), "redis: "), Try: tryURL, Err: err}
}

func (p parts) singleTarget() (*target, error) {
	addrs, err := p.addresses("6379")
	if err != nil {
		return nil, err
	}
	if len(addrs) > 1 {
		return nil, Errorf("redis+cluster://… for a cluster, redis-sentinel://…?master=NAME for Sentinel",
			"a %s:// URL names one server, this one names %d", p.scheme, len(addrs))
	}
	opt, err := redis.ParseURL(p.plain(addrs[0], p.query))
	if err != nil {
		return nil, refused(err)
	}
	return p.finishSingle(opt, addrs[0])
}

func (p parts) socketTarget() (*target, error) {
	if p.hosts != "" || p.path == "" {
		return nil, Errorf("-redis unix:///var/run/redis.sock?db=0", "a %s URL needs three slashes and the path of the socket", p.scheme)
	}
	u := "unix:///" + p.path
	if p.query != "" {
		u += "?" + p.query
	}
	opt, err := redis.ParseURL(u)
	if err != nil {
		return nil, refused(err)
	}
	return p.finishSingle(opt, opt.Addr)
}

func (p parts) finishSingle(opt *redis.Options, name string) (*target, error) {
	if err := checkDB(opt.DB); err != nil {
		return nil, err
	}
	opt.Username, opt.Password = p.user, p.password
	opt.ContextTimeoutEnabled = true
	opt.DialerRetries = dials
	opt.MaintNotificationsConfig = noMaintenance()
	return &target{
		name: name, user: p.user, password: p.hasPassword, tls: opt.TLSConfig != nil, single: opt,
	}, nil
}

func (p parts) sentinelTarget() (*target, error) {
	addrs, err := p.addresses("26379")
	if err != nil {
		return nil, err
	}
	q, err := url.ParseQuery(p.query)
	if err != nil {
		return nil, Errorf(tryEscape, "the options after ? in the Redis URL cannot be read")
	}
	if m := q.Get("master"); m != "" {
		q.Set("master_name", m)
		q.Del("master")
	}
	master := q.Get("master_name")
	if master == "" {
		return nil, Errorf("-redis redis-sentinel://HOST:26379,HOST:26379/0?master=mymaster",
			"the redis-sentinel URL names no master")
	}
	for _, a := range addrs[1:] {
		q.Add("addr", a)
	}
	opt, err := redis.ParseFailoverURL(p.plain(addrs[0], q.Encode()))
	if err != nil {
		return nil, refused(err)
	}
	if opt.RouteByLatency || opt.RouteRandomly || opt.ReplicaOnly {
		return nil, Errorf("leave route_by_latency, route_randomly and replica_only out",
			"the redis-sentinel URL asks for replicas, but limits are decided on the master")
	}
	if err := checkDB(opt.DB); err != nil {
		return nil, err
	}
	// As asynq and go-redis read it: what stands before @ is for the
	// sentinels, ?username= and ?password= are for the master.
	opt.SentinelUsername, opt.SentinelPassword = p.user, p.password
	opt.ContextTimeoutEnabled = true
	opt.DialerRetries = dials
	return &target{
		name: "master " + strconv.Quote(master) + " of sentinels " + strings.Join(opt.SentinelAddrs, ","),
		user: opt.Username, password: opt.Password != "", tls: opt.TLSConfig != nil, sentinel: opt,
	}, nil
}

func (p parts) clusterTarget() (*target, error) {
	if p.path != "" && p.path != "0" {
		return nil, Errorf("leave the path out of the URL", "Redis Cluster has database 0 only")
	}
	p.path = ""
	addrs, err := p.addresses("6379")
	if err != nil {
		return nil, err
	}
	opt, err := redis.ParseClusterURL(p.plain(addrs[0], p.query))
	if err != nil {
		return nil, refused(err)
	}
	if opt.ReadOnly || opt.RouteByLatency || opt.RouteRandomly {
		return nil, Errorf("leave read_only, route_by_latency and route_randomly out",
			"the redis+cluster URL asks for replicas, but limits are decided on the masters")
	}
	opt.Addrs = append(opt.Addrs, addrs[1:]...)
	opt.Username, opt.Password = p.user, p.password
	opt.ContextTimeoutEnabled = true
	opt.DialerRetries = dials
	opt.ClusterStateReloadInterval = slotsAge
	opt.MaintNotificationsConfig = noMaintenance()
	if opt.TLSConfig != nil {
		opt.TLSConfig.MinVersion = tls.VersionTLS12
	}
	return &target{
		name: "cluster " + strings.Join(opt.Addrs, ","),
		user: p.user, password: p.hasPassword, tls: opt.TLSConfig != nil, cluster: opt,
	}, nil
}

func checkDB(db int) error {
	if db < 0 {
		return Errorf(tryURL, "the Redis URL has the database number %d, which is below 0", db)
	}
	return nil
}

// dials is how often go-redis dials before a command fails, and then the
// command itself is tried again. Its own five, nested once more for Sentinel,
// make a refused connection take longer than OpenTimeout.
const dials = 1

// slotsAge is how old a cluster client's map of who owns which slots may get, while there are
// commands. A master that is gone does not say that another took over, and go-redis would go on
// dialling it for a minute. A new map costs one CLUSTER SLOTS.
const slotsAge = 2 * time.Second

// noMaintenance turns off a handshake that only one managed Redis answers.
func noMaintenance() *maintnotifications.Config {
	return &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
}

// pool sets how many connections the client may have to a server, unless the URL says so.
func (t *target) pool(size int) {
	switch {
	case t.single != nil:
		t.single.PoolSize = cmp.Or(t.single.PoolSize, size)
	case t.sentinel != nil:
		t.sentinel.PoolSize = cmp.Or(t.sentinel.PoolSize, size)
	default:
		t.cluster.PoolSize = cmp.Or(t.cluster.PoolSize, size)
	}
}

// client makes the client. Options too large for go-redis make it panic.
func (t *target) client() (rdb redis.UniversalClient, err error) {
	defer func() {
		if r := recover(); r != nil {
			rdb, err = nil, Errorf(tryURL, "the Redis URL has an option that is out of range")
		}
	}()
	switch {
	case t.single != nil:
		return redis.NewClient(t.single), nil
	case t.sentinel != nil:
		return redis.NewFailoverClient(t.sentinel), nil
	}
	return redis.NewClusterClient(t.cluster), nil
}
