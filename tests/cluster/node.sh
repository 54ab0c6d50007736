#!/bin/bash
# The node, process 1 of network, mount, process and host-name namespaces of its own: node.sh STATE PROGRAMS CGROUP
# Nothing of it is seen outside: no address, no mount, no iptables rule, no sysctl. Its end ends every pod.
set -euo pipefail
state=$1 programs=$2 cgroup=$3
ip=192.168.77.2
logs=$state/logs
mkdir -p "$logs" "$state"/{kubelet,containerd,etc/cni,pki,pods,plugins}

# Directories that programs name and have no option for are this run's.
private() {
  mkdir -p "$state/over$1" "$state/work$1"
  mount -t overlay overlay -o "lowerdir=$1,upperdir=$state/over$1,workdir=$state/work$1" "$1"
}
hostname node-1
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs /run
private /var/lib
private /var/log
private /opt
mkdir -p /run/{containerd,netns,lock,etcd} /var/lib/{kubelet,cni} /var/log/{pods,containers}
mount --bind "$state/kubelet" /var/lib/kubelet
mount --bind "$state/pods" /var/log/pods

# The kubelet wants these sysctls so, and would set them for the whole machine.
pretend() {
  local file=/run/sysctl.${1//\//.}
  echo "$2" > "$file"
  [ ! -e "/proc/sys/$1" ] || mount --bind "$file" "/proc/sys/$1"
}
pretend vm/overcommit_memory 1
pretend vm/panic_on_oom 0
pretend kernel/panic 10
pretend kernel/panic_on_oops 1
pretend kernel/keys/root_maxkeys 1000000
pretend kernel/keys/root_maxbytes 25000000
mount --make-rshared /

# A veth pair, because not every kernel has dummy interfaces.
ip link set lo up
ip link add eth0 type veth peer name uplink
ip link set uplink up
ip address add "$ip/24" dev eth0
ip link set eth0 up
ip route add default dev eth0
sysctl -qw net.ipv4.ip_forward=1
# Servers of the node that listen on the loopback are reached from pods by DNAT (stores.py).
sysctl -qw net.ipv4.conf.all.route_localnet=1
sysctl -qw net.bridge.bridge-nf-call-iptables=1 2> /dev/null || true

cd "$state/pki"
authority() {
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=cluster-ca -keyout ca.key -out ca.crt
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=kube-apiserver -keyout api.key -out api.csr
  openssl x509 -req -in api.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -out api.crt \
    -extfile <(echo "subjectAltName=IP:$ip,IP:127.0.0.1,IP:10.96.0.1,DNS:kubernetes.default.svc")
  openssl genrsa -out sa.key 2048
  openssl rsa -in sa.key -pubout -out sa.pub
}
authority 2> "$logs/openssl.log"
for user in admin controllers scheduler node; do
  token=$(openssl rand -hex 16)
  echo "$token,$user,$user,\"system:masters\"" >> tokens.csv
  cat > "$user.kubeconfig" << EOF
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://$ip:6443", certificate-authority: $state/pki/ca.crt}}]
users: [{name: u, user: {token: "$token"}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
current-context: c
EOF
done

# restrict_oom_score_adj: else runc fails if this process may not lower its own.
cat > "$state/etc/containerd.toml" << EOF
version = 2
root = "$state/containerd"
state = "/run/containerd"
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$state/etc/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
EOF
cat > "$state/etc/cni/10-pods.conflist" << 'EOF'
{"cniVersion": "0.4.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "pods0", "isGateway": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.244.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
EOF
cat > "$state/etc/kubelet.yaml" << EOF
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: cgroupfs
cgroupRoot: $cgroup
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
clusterDNS: [$ip]
clusterDomain: cluster.local
failSwapOn: false
enforceNodeAllocatable: []
podCIDR: 10.244.0.0/24
resolvConf: ""
volumePluginDir: $state/plugins
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: 100Mi, nodefs.available: "1%", imagefs.available: "1%", nodefs.inodesFree: "1%"}
EOF
cat > "$state/etc/proxy.yaml" << EOF
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: iptables
clientConnection: {kubeconfig: $state/pki/node.kubeconfig}
clusterCIDR: 10.244.0.0/16
conntrack: {maxPerCore: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
EOF

cd /
start() {
  local name=$1
  shift
  "$@" > "$logs/$name.log" 2>&1 &
}
start etcd etcd --data-dir /run/etcd --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
  --listen-peer-urls http://127.0.0.1:2380
start containerd containerd --config "$state/etc/containerd.toml"
# Without InternalIP `kubectl logs` would look up the name node-1.
start apiserver "$programs/kube" apiserver --etcd-servers=http://127.0.0.1:2379 --advertise-address=$ip --secure-port=6443 \
  --cert-dir="$state/pki" --tls-cert-file="$state/pki/api.crt" --tls-private-key-file="$state/pki/api.key" \
  --token-auth-file="$state/pki/tokens.csv" --client-ca-file="$state/pki/ca.crt" \
  --service-account-key-file="$state/pki/sa.pub" --service-account-signing-key-file="$state/pki/sa.key" \
  --service-account-issuer=https://kubernetes.default.svc --service-cluster-ip-range=10.96.0.0/16 \
  --authorization-mode=Node,RBAC --kubelet-preferred-address-types=InternalIP --allow-privileged=true
until "$programs/kubectl" --kubeconfig "$state/pki/admin.kubeconfig" get --raw /readyz > /dev/null 2>&1; do sleep 0.5; done
start controllers "$programs/kube" controller-manager --kubeconfig="$state/pki/controllers.kubeconfig" \
  --use-service-account-credentials=true --service-account-private-key-file="$state/pki/sa.key" --cert-dir="$state/pki" \
  --root-ca-file="$state/pki/ca.crt" --flex-volume-plugin-dir="$state/plugins" --leader-elect=false
start scheduler "$programs/kube" scheduler --kubeconfig="$state/pki/scheduler.kubeconfig" --cert-dir="$state/pki" --leader-elect=false
start kubelet "$programs/kube" kubelet --config="$state/etc/kubelet.yaml" --kubeconfig="$state/pki/node.kubeconfig" \
  --cert-dir="$state/pki" --node-ip=$ip --hostname-override=node-1
start proxy "$programs/kube" proxy --config="$state/etc/proxy.yaml" --hostname-override=node-1
start dns "$programs/kube" dns --kubeconfig="$state/pki/node.kubeconfig" --listen=$ip:53
touch "$state/started"
# Process 1 takes over what others leave, and must wait for it.
while :; do wait -n || sleep 1; done
