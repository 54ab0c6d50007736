import java.io.File;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;

/** Runs a name node and a data node in a directory until standard input ends; prints their URI. */
public final class OneNodeHdfs {
  public static void main(String[] arguments) throws Exception {
    var settings = new Configuration();
    settings.set("dfs.permissions.enabled", "false");
    var builder = new MiniDFSCluster.Builder(settings, new File(arguments[0])).numDataNodes(1);
    try (MiniDFSCluster cluster = builder.build()) {
      cluster.waitActive();
      System.out.println(cluster.getURI());
      System.in.transferTo(java.io.OutputStream.nullOutputStream());
    }
  }
}
